"""The shape algebra, held against numpy's view of the same arrays."""

from __future__ import annotations

import doctest
import pickle
from itertools import pairwise
from math import prod
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.mesh import shape as shape_module
from roost.mesh import strides as strides_module
from roost.mesh.shape import Extent, Index, MeshTrait, NDSlice, Point, Region, Shape, Slice, UnknownDim

NAMES = ("a", "b", "c", "d")
Ranks = npt.NDArray[np.int64]

sizes_of_dims = st.lists(st.integers(1, 6), max_size=4)

NO_RANK = r"^Shape does not have dimension labeled 'rank'; there are 'hosts', 'gpus'$"


def dense(sizes: list[int]) -> tuple[Shape, Ranks]:
    return Extent(NAMES[: len(sizes)], sizes).region, np.arange(prod(sizes)).reshape(sizes)


@st.composite
def cuts(draw: st.DrawFn, shape: Shape) -> dict[str, Index]:
    """An index for some of the dims, each valid for its size and selecting something."""
    chosen: dict[str, Index] = {}
    for label, size in shape.extent.items():
        match draw(st.sampled_from(["all", "int", "slice"])):
            case "int":
                chosen[label] = draw(st.integers(-size, size - 1))
            case "slice":
                start = draw(st.integers(0, size - 1))
                stop = draw(st.integers(start + 1, size + 2))
                if draw(st.booleans()):
                    start -= size
                chosen[label] = slice(start, stop, draw(st.one_of(st.none(), st.integers(1, size + 1))))
    return chosen


@st.composite
def strided(draw: st.DrawFn) -> tuple[Shape, Ranks]:
    """A shape made by up to three slices, with numpy's answer to the same slices."""
    shape, ranks = dense(draw(sizes_of_dims))
    for _ in range(draw(st.integers(0, 3))):
        cut = draw(cuts(shape))
        ranks = ranks[tuple(cut.get(label, slice(None)) for label in shape.labels)]
        shape = shape.slice(**cut)
    return shape, np.asarray(ranks)


@given(strided())
def test_composed_slices_select_what_numpy_selects(case: tuple[Shape, Ranks]) -> None:
    shape, ranks = case
    assert shape.extent.sizes == ranks.shape
    assert shape.ranks() == tuple(ranks.ravel())
    assert len(set(shape.ranks())) == len(shape)


@given(strided())
def test_every_member_is_found_by_its_rank_and_no_other_rank_is(case: tuple[Shape, Ranks]) -> None:
    shape, ranks = case
    members = shape.ranks()
    for position, coordinates in enumerate(np.ndindex(ranks.shape)):
        base = members[position]
        assert shape.get(position) == base == shape.ndslice.nditem(coordinates)
        assert tuple(shape.coordinates(base).values()) == coordinates
        assert shape.ndslice.index(base) == shape.point(base).rank == position
        assert dict(shape.point(base)) == shape.coordinates(base)
    beyond = range(-3, max(members) + 4)
    assert [rank for rank in beyond if rank in shape] == sorted(members)


@given(strided(), st.data())
def test_a_split_flattens_back_to_the_same_members(case: tuple[Shape, Ranks], data: st.DataObject) -> None:
    shape, ranks = case
    if not shape.labels:
        return
    label = data.draw(st.sampled_from(shape.labels))
    size = shape.extent[label]
    inner = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    parts = shape.split(**{label: ("outer", "inner")}, inner=inner)
    at = shape.labels.index(label)
    reshaped = ranks.reshape((*ranks.shape[:at], size // inner, inner, *ranks.shape[at + 1 :]))
    assert parts.extent.sizes == reshaped.shape
    assert parts.ranks() == tuple(reshaped.ravel()) == shape.ranks()
    assert parts == shape.split(**{label: ("outer", "inner")}, outer=size // inner)


@given(sizes_of_dims)
def test_a_dense_shape_flattens_and_splits_back(sizes: list[int]) -> None:
    shape, _ = dense(sizes)
    flat = shape.flatten("rank")
    assert flat.extent == {"rank": prod(sizes)}
    assert flat.ranks() == tuple(range(prod(sizes)))
    if sizes:
        assert flat.split(rank=shape.labels, **shape.extent).extent == shape.extent


@given(strided())
def test_flatten_keeps_the_members_or_says_that_they_are_not_evenly_spaced(case: tuple[Shape, Ranks]) -> None:
    shape, _ = case
    members = shape.ranks()
    even = len({b - a for a, b in pairwise(members)}) <= 1
    if even:
        assert shape.flatten("x").ranks() == members
    else:
        with pytest.raises(ValueError, match=r"not evenly spaced.*flatten first, then slice"):
            shape.flatten("x")


@given(st.lists(st.integers(0, 60)))
def test_from_list_holds_exactly_the_ranks_given(ranks: list[int]) -> None:
    runs = Slice.from_list(ranks)
    assert [rank for run in runs for rank in run] == sorted(set(ranks))


@given(strided())
def test_shapes_points_and_extents_travel_and_hash_by_value(case: tuple[Shape, Ranks]) -> None:
    shape, _ = case
    point = Point(len(shape) - 1, shape.extent)
    for value in (shape, shape.extent, point, shape.ndslice):
        copy = pickle.loads(pickle.dumps(value))
        assert copy == value and hash(copy) == hash(value) and repr(copy) == repr(value)


def test_an_extent_is_an_ordered_mapping() -> None:
    extent = Extent({"hosts": 2, "gpus": 4})
    assert extent == Extent(("hosts", "gpus"), (2, 4)) == Extent.of(hosts=2, gpus=4)
    assert extent == {"hosts": 2, "gpus": 4}
    assert extent != Extent.of(gpus=4, hosts=2)
    assert extent != {"gpus": 4, "hosts": 2}
    assert (extent.labels, extent.sizes, extent.nelements, len(extent)) == (("hosts", "gpus"), (2, 4), 8, 2)
    assert list(extent) == ["hosts", "gpus"] and "gpus" in extent and "x" not in extent
    assert repr(extent) == str(extent) == "{hosts: 2, gpus: 4}"
    assert extent.region == Shape(("hosts", "gpus"), Slice(offset=0, sizes=(2, 4), strides=(4, 1)))
    assert extent.point(gpus=2, hosts=-1) == Point(6, extent)
    with pytest.raises(TypeError, match="missing: 'gpus'"):
        extent.point(hosts=0)
    with pytest.raises(AttributeError):
        extent.sizes = (1, 1)  # type: ignore[misc]


def test_an_extent_without_dims_is_one_member() -> None:
    extent = Extent({})
    assert extent.nelements == 1 and len(extent) == 0 and repr(extent) == "{}"
    assert [point.rank for point in extent.points()] == [0]
    assert extent.region.ranks() == (0,)


@pytest.mark.parametrize(
    ("labels", "sizes", "error", "text"),
    [
        (["gpus"], [0], ValueError, "'gpus' has size 0"),
        (["gpus"], [-2], ValueError, "'gpus' has size -2"),
        (["gpus"], [True], TypeError, "'gpus' must be an int, not bool True"),
        (["gpus"], [2.0], TypeError, "'gpus' must be an int, not float 2.0"),
        (["gpus"], ["2"], TypeError, "'gpus' must be an int, not str '2'"),
        (["a", "a"], [1, 1], ValueError, "'a' is named twice"),
        (["a-b"], [1], ValueError, "'a-b' cannot name a dimension"),
        ([1], [1], TypeError, "named by a str"),
        (["a"], [1, 2], ValueError, "1 labels"),
        ("ab", [1, 2], TypeError, "must be a sequence of names"),
        (["a"], None, TypeError, "labels and sizes, or one mapping"),
    ],
)
def test_an_extent_refuses_what_is_no_extent(
    labels: list[str], sizes: list[int], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Extent(labels, sizes)


def test_numpy_integers_are_sizes_and_indices() -> None:
    extent = Extent.of(a=np.int64(3))  # type: ignore[arg-type]
    assert type(extent["a"]) is int
    assert extent.region.slice(a=np.int64(2)).ranks() == (2,)  # type: ignore[arg-type]


def test_a_point_is_a_hashable_mapping_that_prints_index_of_size() -> None:
    extent = Extent.of(a=2, b=3)
    points = list(extent.points())
    assert repr(points[4]) == str(points[4]) == "{'a': 1/2, 'b': 1/3}"
    assert points[5] == {"a": 1, "b": 2} and points[5]["b"] == 2 and points[5].size("b") == 3
    assert points[5].size() == 6
    assert len(set(points) | set(extent.points())) == 6
    assert Point(1, extent) != Point(1, Extent.of(a=6))
    assert repr(Point(0, Extent({}))) == "{}"
    with pytest.raises(IndexError, match=r"no rank 6 in \{a: 2, b: 3\}, which has 6 members"):
        Point(6, extent)
    with pytest.raises(IndexError):
        Point(-1, extent)


def test_a_missing_dim_is_named_with_those_there_are() -> None:
    extent = Extent.of(hosts=2, gpus=4)
    for look_up in (
        lambda: extent["rank"],
        lambda: Point(0, extent)["rank"],
        lambda: Point(0, extent).size("rank"),
    ):
        with pytest.raises(UnknownDim, match=NO_RANK) as caught:
            look_up()
        assert isinstance(caught.value, KeyError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    for change in (
        lambda: extent.region.slice(rank=0),
        lambda: extent.region.rename(rank="x"),
        lambda: extent.region.split(rank=("x", "y"), x=1),
    ):
        with pytest.raises(TypeError, match=NO_RANK):
            change()
    with pytest.raises(TypeError, match=r"^Shape does not have dimension labeled 'rank'; there are none$"):
        Extent({}).region.slice(rank=0)


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (4, IndexError, "index out of range: 4 in dimension 'gpus', which has size 4"),
        (-5, IndexError, "index out of range: -5 in dimension 'gpus', which has size 4"),
        (slice(4, 9), IndexError, r"slice\(4, 9, None\) selects nothing of dimension 'gpus'"),
        (slice(None, None, -1), ValueError, "step -1 in dimension 'gpus'"),
        (True, TypeError, "dimension 'gpus' must be an int, not bool"),
        ("0", TypeError, "dimension 'gpus' must be an int, not str"),
    ],
)
def test_a_bad_index_is_told_with_its_dim_and_size(index: Index, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Extent.of(gpus=4).region.slice(gpus=index)


def test_at_select_and_index_are_slices() -> None:
    shape = Extent.of(a=2, b=3).region
    assert shape.at("b", -1).ranks() == (2, 5)
    assert shape.select("b", slice(0, 2)).ranks() == (0, 1, 3, 4)
    assert shape.index(a=1, b=0).ranks() == (3,)
    assert shape.index(a=1, b=0).labels == ()
    with pytest.raises(TypeError, match="must be an int, not slice"):
        shape.index(a=slice(0, 1))  # type: ignore[arg-type]


def test_split_infers_one_size_and_must_divide() -> None:
    shape = Extent.of(host=32, gpu=2).region
    assert shape.split(host=("dp", "pp"), pp=16).extent == {"dp": 2, "pp": 16, "gpu": 2}
    assert shape.split(host=("dp", "pp"), dp=2, pp=16).extent == {"dp": 2, "pp": 16, "gpu": 2}
    assert shape.split(host=("host", "rack"), rack=4, gpu=("x", "y"), y=1).extent.sizes == (8, 4, 2, 1)
    assert shape.split(host=("node",)).extent == {"node": 32, "gpu": 2}
    assert shape.split() == shape
    with pytest.raises(ValueError, match="'host' of size 32 cannot be split by pp=5"):
        shape.split(host=("dp", "pp"), pp=5)
    with pytest.raises(ValueError, match="'host' of size 32 cannot be split by dp=4, pp=4"):
        shape.split(host=("dp", "pp"), dp=4, pp=4)
    with pytest.raises(ValueError, match="only one size may be left out of 'dp', 'pp'"):
        shape.split(host=("dp", "pp"))
    with pytest.raises(ValueError, match="'gpu' is named twice"):
        shape.split(host=("dp", "gpu"), dp=2)
    with pytest.raises(TypeError, match="a size is given for 'pp'"):
        shape.split(host=("dp", "tp"), tp=2, pp=2)
    with pytest.raises(TypeError, match="'host' is split into a tuple of names, not into 'dp'"):
        shape.split(host="dp")
    with pytest.raises(TypeError, match=r"not into \(\)"):
        shape.split(host=())
    with pytest.raises(ValueError, match="'pp' has size 0"):
        shape.split(host=("dp", "pp"), pp=0)


def test_rename_keeps_places_and_may_swap() -> None:
    shape = Extent.of(a=2, b=3).region
    assert shape.rename(a="x").extent == {"x": 2, "b": 3}
    assert shape.rename(a="b", b="a").extent == {"b": 2, "a": 3}
    with pytest.raises(ValueError, match="'b' is named twice"):
        shape.rename(a="b")


@pytest.mark.parametrize(
    ("offset", "sizes", "strides"),
    [
        (0, (2, 2), (1, 1)),
        (0, (3, 3), (2, 1)),
        (0, (2,), (0,)),
        (-1, (1,), (1,)),
        (0, (0,), (1,)),
        (0, (2,), ()),
    ],
)
def test_a_slice_refuses_ranks_that_meet(offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        Slice(offset=offset, sizes=sizes, strides=strides)


def test_a_slice_may_be_column_major() -> None:
    s = Slice(offset=0, sizes=[2, 3], strides=[1, 2])  # type: ignore[arg-type]
    assert s.ranks() == tuple(s) == (0, 2, 4, 1, 3, 5)
    assert [s.index(rank) for rank in s] == list(range(6))
    assert s == Slice(0, (2, 3), (1, 2)) and s.ndim == 2 and len(s) == 6
    for wrong in (lambda: s.get(6), lambda: s.get(-1), lambda: s.nditem((0, 3)), lambda: s.nditem((0,))):
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(ValueError, match="rank 6 is not in Slice"):
        s.coordinates(6)


def test_reprs_say_where_a_shape_stands() -> None:
    shape = Extent.of(a=2, b=3).region
    assert repr(shape) == "Shape({a: 2, b: 3})"
    assert repr(shape.slice(b=1)) == "Shape({a: 2}, offset=1, strides=(3,))"
    assert (Region, NDSlice) == (Shape, Slice) and shape.region is shape


class Mesh(MeshTrait):
    def __init__(self, table: list[str], shape: Shape) -> None:
        self._table, self._shape = table, shape

    def _with_shape(self, shape: Shape) -> Mesh:
        return Mesh(self._table, shape)

    def members(self) -> list[str]:
        return [self._table[rank] for rank in self._shape.ranks()]


def test_a_mesh_is_reshaped_over_one_table() -> None:
    mesh = Mesh(list("abcdefgh"), Extent.of(hosts=2, gpus=4).region)
    part = mesh.slice(gpus=slice(1, 3))
    assert part.members() == list("bcfg") and part._table is mesh._table
    assert part.slice(hosts=-1).members() == list("fg")
    assert part.slice(hosts=0, gpus=1).members() == ["c"]
    assert len(part) == part.size() == 4 and part.sizes == {"hosts": 2, "gpus": 2}
    assert (mesh.size("gpus"), mesh.size(["hosts", "gpus"]), mesh.size(())) == (4, 8, 1)
    assert mesh.flatten("rank").slice(rank=slice(None, None, 3)).members() == list("adg")
    assert mesh.split(gpus=("dp", "tp"), tp=2).slice(tp=1).members() == list("bdfh")
    assert mesh.rename(gpus="tp").extent == {"hosts": 2, "tp": 4}
    assert part.slice().members() == part.members()
    with pytest.raises(UnknownDim, match="Shape does not have dimension labeled 'rank'; there are 'hosts', 'gpus'"):
        mesh.size("rank")
    with pytest.raises(NotImplementedError, match="MeshTrait does not say how"):
        MeshTrait()._with_shape(mesh._shape)


@pytest.mark.parametrize("module", [shape_module, strides_module])
def test_the_examples_in_docstrings_hold(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted and not results.failed
