"""The task: short sums from reasoning_gym's `chain_sum`, scored by that dataset's own verifier.

Two terms of one digit make only 200 different prompts ("0 + 0 =" to "9 - 9 ="). A fixed fifth of them,
40, is held out and never trained on, so the held-out accuracy tells whether the model *adds*, not whether
it has learnt a table by heart. It is a hard test, from 160 examples and in steps of 2.5 %: expect it well
below the training reward. With more digits the space grows (above 7,000 with two) and so does the time.

The verifier gives part of a point to an answer that contains the right one: len(right) / len(answer), so
"12" for 2 scores 0.5. Rewards keep that; accuracy counts full points only.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

PAD, EOS = 0, 1
CHARS = "0123456789+-= "
VOCAB_SIZE = len(CHARS) + 2
_ID_OF = {char: index + 2 for index, char in enumerate(CHARS)}


def encode(text: str) -> list[int]:
    """Token ids of `text`, one a character: encode("3 +") == [5, 15, 12]."""
    return [_ID_OF[char] for char in text]


def decode(tokens: Sequence[int]) -> str:
    """Text of `tokens` up to the first EOS; a PAD before it reads as "?", which spoils the answer."""
    chars: list[str] = []
    for token in tokens:
        if token == EOS:
            break
        chars.append("?" if token == PAD else CHARS[token - 2])
    return "".join(chars)


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """Which sums; the defaults are 3 + 4 and 7 - 9. Every argument makes it harder."""

    num_terms: int = 2
    max_digits: int = 1
    seed: int = 1
    pool: int = 20_000  # sums drawn from the dataset, with repetitions
    held_out: float = 0.2  # part of the *different* prompts that is kept for evaluation

    def describe(self) -> str:
        """In words: "sums of 2 numbers of one digit"."""
        digits = "one digit" if self.max_digits == 1 else f"up to {self.max_digits} digits"
        return f"sums of {self.num_terms} numbers of {digits}"

    @property
    def prompt_chars(self) -> int:
        """Length of the longest prompt: terms, " + " between them and " =" behind."""
        return self.num_terms * self.max_digits + 3 * (self.num_terms - 1) + 2


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt. `ticket` numbers the draw and is unique in a run; `index` is the entry of the dataset."""

    ticket: int
    index: int
    prompt: str
    answer: str


@lru_cache(maxsize=4)
def _dataset(config: TaskConfig) -> Any:
    import reasoning_gym  # takes a second, and trainers and generators need only the tokenizer

    return reasoning_gym.create_dataset(
        "chain_sum",
        size=config.pool,
        seed=config.seed,
        min_terms=config.num_terms,
        max_terms=config.num_terms,
        min_digits=1,
        max_digits=config.max_digits,
    )


@lru_cache(maxsize=4)
def split(config: TaskConfig) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """(train, held out) of the pool: no prompt is in both; train repeats prompts, held out does not."""
    items = [_item(index, entry) for index, entry in enumerate(_dataset(config))]
    unique = {item.prompt: item for item in reversed(items)}  # the first of each
    names = sorted(unique)
    random.Random(config.seed).shuffle(names)
    held_names = names[: round(len(names) * config.held_out)]
    held = set(held_names)
    train = tuple(item for item in items if item.prompt not in held)
    return train, tuple(unique[name] for name in held_names)


def _item(index: int, entry: dict[str, Any]) -> Item:
    return Item(-1, index, entry["metadata"]["expression"] + " =", entry["answer"])


def score(config: TaskConfig, item: Item, completion: str) -> float:
    """Points between 0 and 1 from the dataset's verifier for `completion`, the text before EOS."""
    return float(_dataset(config).score_answer(completion, {"answer": item.answer}))


class PromptCursor:
    """Deals the training items in a shuffled order, epoch by epoch; its place is part of a checkpoint.

    >>> cursor = PromptCursor(TaskConfig(), seed=0)
    >>> first = cursor.take(2)
    >>> cursor.requeue(first)         # a generator died: its prompts are dealt again, first of all
    >>> cursor.take(2) == first
    True
    """

    def __init__(self, task: TaskConfig, seed: int) -> None:
        self._task, self._seed = task, seed
        self._drawn = 0  # tickets given out so far
        self._again: deque[Item] = deque()
        self._order: list[int] = []
        self._epoch = -1

    def take(self, count: int) -> list[Item]:
        """The next `count` items: returned ones first, with the tickets they had, then new ones."""
        return [self._again.popleft() if self._again else self._draw() for _ in range(count)]

    def requeue(self, items: Sequence[Item]) -> None:
        """Give `items` back; they are dealt before any new one, in the order given."""
        self._again.extend(items)

    def _draw(self) -> Item:
        train, _ = split(self._task)
        epoch, place = divmod(self._drawn, len(train))
        if epoch != self._epoch:
            self._order = random.Random(f"{self._seed}/{epoch}").sample(range(len(train)), len(train))
            self._epoch = epoch
        item = train[self._order[place]]
        self._drawn += 1
        return Item(self._drawn - 1, item.index, item.prompt, item.answer)

    def state_dict(self) -> dict[str, Any]:
        """Plain values that restore the cursor; of the same seed and task the deal goes on alike."""
        return {"drawn": self._drawn, "again": [asdict(item) for item in self._again]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._drawn = state["drawn"]
        self._again = deque(Item(**fields) for fields in state["again"])

    def __repr__(self) -> str:
        return f"PromptCursor(drawn={self._drawn}, returned={len(self._again)})"
