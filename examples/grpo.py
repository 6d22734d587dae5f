"""GRPO on meshes of actors: a small transformer learns to add, from one Python program.

    python examples/grpo.py --out out/demo

A trainer mesh of two data-parallel ranks, a generator mesh of two, reward actors, and a replay buffer of bounded
staleness. Generation goes on while training runs: each optimizer step publishes a version of the weights in trainer 0's
memory, and generators pull it one-sided when they like. `--kill-generator-at 100` sends SIGKILL to a generator and
shows what becomes of it; `--resume` goes on from the checkpoint in the output folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from grpo_parts.buffer import ReplayBuffer
from grpo_parts.checkpoint import History, load_checkpoint, save_checkpoint, summarize
from grpo_parts.config import RunConfig
from grpo_parts.grpo import Metrics
from grpo_parts.plot import plot_run
from grpo_parts.records import Evaluation, Event, Group, StepRecord
from grpo_parts.task import PromptCursor, TaskConfig
from grpo_parts.view import RunView
from grpo_parts.workers import Generator, Reward, Trainer

import roost
from roost import Channel, SupervisionError, this_host
from roost.rdma.collectives import init_process_group

SAVE_EVERY = 50  # steps between checkpoints
PRELOAD = ("torch", "torch.distributed", "numpy")  # imported once a host, shared by all processes


class Run:
    """One run: the meshes, the buffer between them, and the two loops that keep them busy."""

    def __init__(self, config: RunConfig, args: argparse.Namespace, view: RunView) -> None:
        self.config, self.args, self.view = config, args, view
        self.out: Path = args.out
        self.cursor = PromptCursor(config.task, config.seed)
        self.buffer = ReplayBuffer(config.prompts, config.max_staleness)
        self.version = 0
        self.changed = asyncio.Condition()  # the buffer or the version has
        self.history = History()
        self.pull_ms = 0.0
        self.pids: dict[int, int] = {}
        self.idle = {"trainer": 0.0, "generators": 0.0}
        self.seconds_before = 0.0  # of the runs this one resumes
        self.begin = time.perf_counter()

    # meshes

    async def spawn(self) -> None:
        """Bring up processes and actors; a second on a laptop."""
        ranks, device, threads = self.args.ranks, self.args.device, 1
        host = this_host()
        self.trainer_procs = host.spawn_procs({"gpus": ranks}, name="trainer", preload=PRELOAD)
        self.generator_procs = [host.spawn_procs(name=f"generator{i}", preload=PRELOAD) for i in range(ranks)]
        self.reward_procs = host.spawn_procs({"replicas": ranks}, name="reward", preload=PRELOAD)
        self.trainers = self.trainer_procs.spawn("trainer", Trainer, self.config, device, threads)
        self.rewards = self.reward_procs.spawn("reward", Reward, self.config)
        if ranks > 1:
            backend = await asyncio.to_thread(init_process_group, self.trainer_procs)
            self.view.status(f"{ranks} trainers joined over {backend}")

    async def spawn_generator(self, index: int) -> Any:
        """A generator on its own process, at the current weights."""
        seed = self.config.seed * 1000 + 100 * index + self.version
        actor = self.generator_procs[index].spawn(
            f"generator{index}", Generator, self.config, self.args.device, 1, self.source, self.rewards, seed
        )
        await actor.pull.call_one()
        self.pids[index] = await actor.pid.call_one()
        return actor

    async def warm_up(self) -> None:
        """The supervised start."""
        port, progress = Channel.open()
        call = self.trainers.warm_up.call(port)
        while not call.done():
            try:
                step, loss = await asyncio.wait_for(progress.recv().as_asyncio(), 0.5)
                self.view.status(f"supervised start: step {step}/{self.config.warmup_steps}, loss {loss:.2f}")
            except TimeoutError:
                continue
        await call

    # the two loops

    async def generate(self, index: int) -> None:
        """Keep one generator busy as long as there are slots; replace it when it dies."""
        owner = f"generator {index}"
        generator = await self.spawn_generator(index)
        share = max(self.config.prompts // self.args.ranks, 1)
        while self.version < self.config.steps:
            try:
                version, pulled = await generator.pull.call_one()
                self.pull_ms = pulled if pulled is not None else self.pull_ms
                room = min(self.buffer.room(version), share)
                if not room:
                    await self.wait_for_change("generators")
                    continue
                items = self.cursor.take(room)
                self.buffer.start(owner, items)
                rollout = await generator.rollout.call_one(items)
            except SupervisionError as error:
                generator = await self.replace_generator(index, owner, error)
                continue
            for group in rollout.groups:
                self.buffer.put(group)
            await self.notify()

    async def replace_generator(self, index: int, owner: str, error: SupervisionError) -> Any:
        """A generator is gone: its unfinished prompts are dealt again, a fresh one comes up at the current weights."""
        lost = self.buffer.release_running(owner)
        self.cursor.requeue(self.buffer.returned())
        self.generator_procs[index] = this_host().spawn_procs(name=f"generator{index}", preload=PRELOAD)
        generator = await self.spawn_generator(index)
        report = error.exit_report
        how = (report.signal or f"exit code {report.code}") if report is not None else type(error).__name__
        self.event(
            f"{owner} was lost ({how}); a fresh one is up at version {self.version}, {lost} prompts are dealt again"
        )
        return generator

    async def train(self) -> None:
        """Take batches as they come and step; each step is the next version."""
        while self.version < self.config.steps:
            waited = time.perf_counter()
            while (groups := self.buffer.take(self.version)) is None:
                await self.wait_for_change("trainer")
            self.cursor.requeue(self.buffer.returned())
            begin = time.perf_counter()
            answers = await self.trainers.step.call(groups)
            metrics, _ = answers.get(0)
            self.version += 1
            await self.notify()
            self.record(groups, metrics, begin - waited, time.perf_counter() - waited)
            if self.args.kill_generator_at == self.version:
                self.kill_generator()
            if self.version % SAVE_EVERY == 0:
                await self.save()
        await self.notify()

    def kill_generator(self) -> None:
        """What an out-of-memory killer, or a colleague, would do."""
        index = self.args.ranks - 1
        self.event(f"generator {index} (pid {self.pids[index]}) is sent SIGKILL")
        os.kill(self.pids[index], signal.SIGKILL)

    async def wait_for_change(self, who: str) -> None:
        """Wait until the buffer or the version changes; the time counts as idle."""
        begin = time.perf_counter()
        async with self.changed:
            try:
                await asyncio.wait_for(self.changed.wait(), 1.0)
            except TimeoutError:
                pass
        self.idle[who] += time.perf_counter() - begin

    async def notify(self) -> None:
        """Wake whoever waits."""
        async with self.changed:
            self.changed.notify_all()

    # what is seen and kept

    def record(self, groups: list[Group], metrics: Metrics, waited: float, took: float) -> None:
        """One step, for the view and the log."""
        ages = [self.version - 1 - group.version for group in groups]
        generators = self.idle["generators"] / self.args.ranks
        self.idle["generators"] = self.idle["trainer"] = 0.0
        record = StepRecord(
            step=self.version,
            seconds=self.seconds_before + time.perf_counter() - self.begin,
            reward=sum(float(group.rewards.mean()) for group in groups) / len(groups),
            staleness=sum(ages) / len(ages),
            max_staleness=max(ages),
            tokens_per_s=sum(group.count for group in groups) / took,
            trainer_idle=min(waited / took, 1.0),
            generator_idle=min(generators / took, 1.0),
            pull_ms=self.pull_ms,
            loss=metrics.loss,
            entropy=metrics.entropy,
            clip_fraction=metrics.clip_fraction,
            kl=metrics.kl_behaviour,
            dropped=self.buffer.statistics().dropped,
        )
        self.history.records.append(record)
        self.view.step(record)
        with (self.out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def event(self, text: str) -> None:
        """A line worth reading."""
        event = Event(self.version, text)
        self.history.events.append(event)
        self.view.event(event)

    async def evaluate(self) -> float:
        """Greedy accuracy on held-out prompts, now."""
        accuracy = await self.trainers.flatten("rank").slice(rank=0).evaluate.call_one()
        evaluation = Evaluation(self.version, accuracy)
        self.history.evaluations.append(evaluation)
        self.view.evaluation(evaluation)
        return float(accuracy)

    async def save(self) -> None:
        """Everything that a run needs to go on: weights, optimizer, buffer, data cursor, history."""
        trainer = await self.trainers.flatten("rank").slice(rank=0).save.call_one()
        save_checkpoint(self.out, trainer, self.version, self.buffer, self.cursor, self.history)

    async def load(self) -> None:
        """Go on from the checkpoint in the output folder."""
        trainer, self.version = load_checkpoint(self.out, self.buffer, self.cursor, self.history)
        await self.trainers.load.call(trainer)
        self.seconds_before = self.history.seconds
        self.event(f"resumed at step {self.version}")

    async def whole(self) -> dict[str, Any]:
        """From the first process to the summary."""
        await self.spawn()
        if self.args.resume:
            await self.load()
        else:
            await self.warm_up()
        self.source = (await self.trainers.publish.call()).get(0)
        if not self.history.evaluations:
            await self.evaluate()
        async with asyncio.TaskGroup() as loops:
            for index in range(self.args.ranks):
                loops.create_task(self.generate(index))
            loops.create_task(self.train())
        await self.evaluate()
        await self.save()
        seconds = self.seconds_before + time.perf_counter() - self.begin
        return summarize(self.history, self.version, seconds, self.buffer)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/grpo"), help="folder for metrics, plot and checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=RunConfig().steps, help="optimizer steps in all")
    parser.add_argument("--ranks", type=int, default=2, help="trainer ranks, and generators")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--terms", type=int, default=2, help="numbers in a sum")
    parser.add_argument("--digits", type=int, default=1, help="digits of a number, at most")
    parser.add_argument(
        "--staleness", type=int, default=RunConfig().max_staleness, help="versions a rollout may be behind"
    )
    parser.add_argument("--kl", type=float, default=0.0, help="weight of the KL to the reference policy")
    parser.add_argument("--warmup-steps", type=int, default=RunConfig().warmup_steps)
    parser.add_argument(
        "--kill-generator-at", type=int, metavar="STEP", help="send SIGKILL to a generator at this step"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    args = parser.parse_args()
    if args.ranks < 1:
        parser.error(f"--ranks {args.ranks}: at least one trainer and one generator are needed")
    if args.resume and not (args.out / "checkpoint.pt").is_file():
        parser.error(f"--resume: there is no checkpoint.pt in {args.out}")
    return args


@contextmanager
def fresh(out: Path, resume: bool) -> Iterator[None]:
    """The output folder, without the metrics of an earlier run unless this one resumes it."""
    out.mkdir(parents=True, exist_ok=True)
    if not resume:
        (out / "metrics.jsonl").unlink(missing_ok=True)
    yield


def main() -> None:
    """Run, then leave a summary, a plot and a checkpoint."""
    args = parse()
    task = TaskConfig(num_terms=args.terms, max_digits=args.digits)
    config = replace(
        RunConfig(),
        seed=args.seed,
        steps=args.steps,
        task=task,
        max_staleness=args.staleness,
        kl_coef=args.kl,
        warmup_steps=args.warmup_steps,
    )
    torch.set_num_threads(1)
    with fresh(args.out, args.resume), RunView(config.steps) as view:
        run = Run(config, args, view)
        try:
            summary = asyncio.run(run.whole())
        finally:
            if run.history.records:
                plot_run(
                    *run.history.shown(),
                    args.out / "reward.png",
                    run.history.events,
                    title=f"GRPO on {task.describe()}",
                )
            roost.shutdown()
    (args.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(
        f"{summary['steps']} steps in {summary['seconds']:.0f} s: mean reward {summary['reward_first']:.3f} -> "
        f"{summary['reward_last']:.3f}, held-out greedy accuracy {summary['greedy_before']:.1%} -> "
        f"{summary['greedy_after']:.1%}\n{args.out}: metrics.jsonl, reward.png, checkpoint.pt, summary.json"
    )


if __name__ == "__main__":
    main()
