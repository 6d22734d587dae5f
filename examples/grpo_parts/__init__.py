"""The parts of `grpo.py`, each a short module on its own: none of them knows Roost, actors or processes.

Read in this order: config, task, model, sampler, records, grpo, warmup, buffer; then view and plot.
"""
