"""Commands that workers are started by: forms that are taken, and what an agent is told."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from roost.mesh.commands import BootstrapCommand, commands_of, default_bootstrap_cmd, started_by
from roost.mesh.launch.spec import CHILD
from roost.mesh.shape import Extent


def test_arguments_may_follow_the_program_by_position_or_by_name() -> None:
    by_name = BootstrapCommand("nsys", args=["profile"], env={"A": "1"})
    assert BootstrapCommand("nsys", ("profile",), {"A": "1"}) == by_name
    assert BootstrapCommand("nsys", None, ("profile",), {"A": "1"}) == by_name
    assert BootstrapCommand("nsys", "N", ("profile",)).arg0 == "N"
    assert len({by_name, BootstrapCommand("nsys", ("profile",), {"A": "1"})}) == 1


@pytest.mark.parametrize(
    ("args", "text"),
    [(("p", None, "abc"), "sequence of strings"), (("p", None, [1]), "sequence of strings"), (("p", 3, ["x"]), "arg0")],
)
def test_forms_that_mean_nothing_are_refused(args: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        BootstrapCommand(*args)
    with pytest.raises(TypeError, match="maps names to strings"):
        BootstrapCommand("p", env={"A": 1})  # type: ignore[dict-item]


def test_variables_are_added_to_a_copy_and_none_removes_one() -> None:
    command = BootstrapCommand("p", env={"A": "1"})
    more = command.with_env({"B": "2", "A": None})
    assert (command.env, more.env) == ({"A": "1"}, {"A": None, "B": "2"})


def test_the_default_command_is_no_command_whatever_its_variables() -> None:
    assert default_bootstrap_cmd().with_env({"A": "1"}).argv() is None
    assert started_by(default_bootstrap_cmd().with_env({"A": "1"}), {}) == {
        "cpus": None, "env": {"A": "1"}, "inherit_env": True, "arg0": None,
    }  # fmt: skip
    bare = BootstrapCommand(sys.executable, args=CHILD, inherit_env=False)
    assert bare.argv() == [sys.executable, *CHILD]


def test_a_binding_stands_before_the_command() -> None:
    told = started_by(BootstrapCommand("nsys", ("profile",)), {"cpus": "0", "membind": "1", "cpunodebind": "0"})
    assert told["command"] == ["numactl", "--cpunodebind=0", "--membind=1", "nsys", "profile"]
    assert told["cpus"] == "0"
    assert started_by(None, {}) == {"cpus": None}
    with pytest.raises(ValueError, match="numactl"):
        started_by(BootstrapCommand("p", arg0="q"), {"membind": "0"})


def test_a_function_gives_the_command_of_each_point() -> None:
    extent = Extent.of(hosts=2, gpus=2)
    found = commands_of(lambda p: BootstrapCommand("p", (str(p["gpus"]),)) if p["hosts"] else None, extent)
    assert [command and list(command.args) for command in found] == [None, None, ["0"], ["1"]]
    with pytest.raises(TypeError, match=r"\{'hosts': 0/2, 'gpus': 0/2\}"):
        commands_of(lambda p: 3, extent)  # type: ignore[arg-type, return-value]
