"""ValueMesh: order, slices, construction from replies, pickles and reprs."""

from __future__ import annotations

import doctest
import math
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.mesh import valuemesh
from roost.mesh.shape import Extent, Point
from roost.mesh.valuemesh import ValueMesh

GRID = Extent.of(hosts=2, gpus=3)


def test_values_stand_in_row_major_order() -> None:
    mesh = ValueMesh(GRID, "abcdef")
    assert mesh.values() == list("abcdef")
    assert list(mesh) == list(mesh.items())
    assert [(point.rank, dict(point), value) for point, value in mesh][4] == (4, {"hosts": 1, "gpus": 1}, "e")
    assert len(mesh) == 6 and mesh.extent == GRID
    assert [mesh.get(rank) for rank in range(6)] == mesh.values()
    with pytest.raises(IndexError):
        mesh.get(6)
    with pytest.raises(IndexError):
        mesh.get(-1)


def test_a_slice_has_ranks_of_its_own_and_shares_the_values() -> None:
    mesh = ValueMesh(GRID, "abcdef")
    part = mesh.slice(gpus=slice(1, None))
    assert part.values() == list("bcef")
    assert part.get(3) == "f" and part.item(hosts=1, gpus=0) == "e"
    assert [point for point, _ in part] == list(Extent.of(hosts=2, gpus=2).points())
    assert part._table is mesh._table
    assert mesh.flatten("rank").item(rank=-1) == "f"
    assert mesh.split(hosts=("a", "b"), b=2).rename(gpus="c").item(a=0, b=1, c=0) == "d"


def test_values_of_a_strided_shape_are_those_of_its_members() -> None:
    shape = GRID.region.slice(gpus=slice(0, 3, 2))
    assert ValueMesh(shape, "abcd").slice(hosts=1).values() == ["c", "d"]


def test_item_takes_exactly_one_value() -> None:
    mesh = ValueMesh(GRID, range(6))
    assert mesh.item(hosts=1, gpus=2) == 5
    assert mesh.slice(hosts=1, gpus=2).item() == 5
    assert mesh.slice(hosts=slice(1, 2), gpus=slice(2, 3)).item() == 5
    with pytest.raises(ValueError, match=r"one value of \{hosts: 2, gpus: 3\}; still to be chosen: \{gpus"):
        mesh.item(hosts=0)
    with pytest.raises(TypeError, match="Shape does not have dimension labeled 'rank'; there are 'hosts', 'gpus'"):
        mesh.item(rank=0)
    with pytest.raises(IndexError, match="index out of range: 2 in dimension 'hosts', which has size 2"):
        mesh.item(hosts=2, gpus=0)


@pytest.mark.parametrize("n", [0, 5, 7])
def test_as_many_values_as_members_are_wanted(n: int) -> None:
    with pytest.raises(ValueError, match=rf"{n} values for the 6 members of \{{hosts: 2, gpus: 3\}}"):
        ValueMesh(GRID, range(n))


def test_replies_in_any_order_become_a_mesh_and_the_last_one_counts() -> None:
    mesh = ValueMesh.from_indexed(GRID, [(5, "f"), (0, "x"), *enumerate("abcde")])
    assert mesh == ValueMesh(GRID, "abcdef")


def test_ranks_that_did_not_reply_are_named() -> None:
    with pytest.raises(ValueError, match=r"^no value for ranks 1, 3 of \{gpus: 4\}$"):
        ValueMesh.from_indexed(Extent.of(gpus=4), [(0, 1), (2, 1)])
    with pytest.raises(ValueError, match=r"^no value for rank 1 of"):
        ValueMesh.from_indexed(Extent.of(gpus=2), [(0, 1)])
    with pytest.raises(ValueError, match=r" 15 and 84 more of \{gpus: 100\}$"):
        ValueMesh.from_indexed(Extent.of(gpus=100), [])
    with pytest.raises(IndexError, match=r"no rank 4 in \{gpus: 4\}, which has 4 members"):
        ValueMesh.from_indexed(Extent.of(gpus=4), [(4, 1)])


def test_map_calls_once_for_each_member_of_the_slice() -> None:
    seen: list[int] = []
    mesh = ValueMesh(GRID, range(6)).slice(gpus=0).map(lambda x: seen.append(x) or x + 1)  # type: ignore[func-returns-value]
    assert seen == [0, 3] and mesh.values() == [1, 4] and mesh.extent == {"hosts": 2}


def test_lazy_values_are_made_once_and_only_when_asked_for() -> None:
    made: list[int] = []

    def thunk(n: int) -> Callable[[], int]:
        return lambda: made.append(n) or n  # type: ignore[func-returns-value]

    mesh = ValueMesh._lazy(GRID, [thunk(n) for n in range(6)])
    part = mesh.slice(hosts=1)
    assert made == []
    assert part.get(1) == 4 and mesh.get(4) == 4 and made == [4]
    assert mesh.values() == list(range(6)) and sorted(made) == list(range(6))


def test_a_lazy_value_that_failed_is_tried_again() -> None:
    results: list[Exception | int] = [OSError("first"), 7]

    def flaky() -> int:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    mesh = ValueMesh._lazy(Extent({}), [flaky])
    with pytest.raises(OSError, match="first"):
        mesh.item()
    assert mesh.item() == 7 and mesh.item() == 7


def test_equality_is_of_extent_and_values() -> None:
    mesh = ValueMesh(GRID, range(6))
    assert mesh == ValueMesh(GRID, range(6)) and mesh != ValueMesh(GRID, range(1, 7))
    assert mesh != mesh.flatten("rank") and mesh != list(range(6))
    assert mesh.slice(gpus=1) == ValueMesh(Extent.of(hosts=2), [1, 4])
    with pytest.raises(TypeError, match="unhashable"):
        hash(mesh)


scalars = st.one_of(st.integers(0, 2), st.booleans(), st.floats(), st.none(), st.text(max_size=2))


@given(st.lists(scalars, min_size=1, max_size=12))
def test_a_pickle_keeps_every_value_and_its_type(values: list[object]) -> None:
    copy = pickle.loads(pickle.dumps(ValueMesh(Extent.of(a=len(values)), values)))
    for before, after in zip(values, copy.values(), strict=True):
        assert repr(before) == repr(after)
    assert copy.extent == {"a": len(values)}


def test_a_pickle_holds_runs_once_and_only_its_own_slice() -> None:
    same = ValueMesh(Extent.of(a=4096), ["ok" * 50] * 4096)
    assert len(pickle.dumps(same)) < 400
    assert pickle.loads(pickle.dumps(same)) == same
    text = ["".join(["x"] * 1000) for _ in range(64)]  # equal, and not one object
    assert len(pickle.dumps(ValueMesh(Extent.of(a=64), text))) < 1400
    big = ValueMesh(Extent.of(a=2, b=1), ["x" * 10_000, "y"])
    part = pickle.loads(pickle.dumps(big.slice(a=1)))
    assert len(pickle.dumps(big.slice(a=1))) < 400 and part == big.slice(a=1)


def test_unequal_objects_are_not_taken_for_a_run() -> None:
    lists: list[list[int]] = [[], []]
    copy = pickle.loads(pickle.dumps(ValueMesh(Extent.of(a=2), lists)))
    assert copy.get(0) is not copy.get(1)
    mixed = pickle.loads(pickle.dumps(ValueMesh(Extent.of(a=5), [1, True, 1.0, 0.0, -0.0]))).values()
    assert [type(value) for value in mixed] == [int, bool, float, float, float]
    assert math.copysign(1, mixed[4]) == -1


def test_repr_shows_points_and_values_and_is_bounded() -> None:
    assert repr(ValueMesh(Extent.of(gpus=2), [0, 1])) == (
        "ValueMesh({gpus: 2}):\n  (({'gpus': 0/2}, 0), ({'gpus': 1/2}, 1))"
    )
    assert repr(ValueMesh(Extent({}), ["x"])) == "ValueMesh({}):\n  (({}, 'x'),)"
    many = repr(ValueMesh(Extent.of(gpus=5000), ["y" * 9999] * 5000))
    assert many.endswith("... 4984 more)") and len(many) < 5000


def test_the_notebook_table_is_escaped_and_bounded() -> None:
    table = ValueMesh(Extent.of(gpus=100), ["<b>"] * 100)._repr_html_()
    assert "<b>" not in table and "&lt;b&gt;" in table
    assert table.count("<tr>") == 1 + 32 + 1 and "68 more" in table
    assert table.startswith("<table>") and "<th>gpus</th><th>value</th>" in table


def test_points_of_a_result_are_keys() -> None:
    by_point = dict(ValueMesh(Extent.of(a=2), "xy"))
    assert by_point[Point(1, Extent.of(a=2))] == "y"


def test_the_examples_in_docstrings_hold() -> None:
    results = doctest.testmod(valuemesh)
    assert results.attempted and not results.failed


def test_zip_pairs_the_values_of_one_member() -> None:
    one, two = ValueMesh(Extent.of(gpus=2), "ab"), ValueMesh(Extent.of(gpus=2), [1, 2])
    assert one.zip(two, two).values() == [("a", 1, 1), ("b", 2, 2)]
    with pytest.raises(ValueError, match="cannot be zipped"):
        one.zip(ValueMesh(Extent.of(gpus=3), range(3)))
