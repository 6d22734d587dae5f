"""Extents, points and meshes of values: cut, split, flattened, renamed and printed."""

from monarch._src.actor.shape import NDSlice, Shape, Slice
from monarch.actor import Actor, Extent, Point, ValueMesh, current_rank, current_size, endpoint, this_host


class Here(Actor):
    @endpoint
    def where(self):
        return dict(current_rank()), current_size()

    @endpoint
    def rank(self):
        return current_rank().rank


procs = this_host().spawn_procs(per_host={"dp": 2, "tp": 2})
here = procs.spawn("here", Here)
print(here.extent, here.size(), here.size("dp"), here.sizes, len(here))
print(here.rank.call().get())
print(here.slice(dp=1).where.call().get().item(tp=0))
print(here.slice(dp=1, tp=0).where.call_one().get())
print(here.flatten("all").slice(all=slice(0, 4, 2)).rank.call().get())
print(here.rename(dp="replica").extent)
print(here.flatten("all").split(all=("a", "b", "c"), b=2, c=1).extent)
values = here.rank.call().get()
print(values.item(dp=1, tp=0), list(values.slice(tp=1).values()), values.get(3))
print([(point.rank, dict(point), value) for point, value in values.items()])
print(here.slice(dp=0, tp=1).rank.call().get().item())
point = Point(5, Extent(["x", "y"], [2, 3]))
print(point, point["y"], point.size("y"), list(point), len(point), point == Point(5, point.extent))
print(ValueMesh(Shape(["n"], Slice(offset=0, sizes=[2], strides=[1])), ["one", "two"]))
print(Shape(["a", "b"], NDSlice(offset=0, sizes=[2, 3], strides=[3, 1])).at("a", 1).extent)
print(list(Slice(offset=1, sizes=[2, 2], strides=[4, 2])), Extent(["a"], [3]).nelements)
for wrong in ({"pp": 0}, {"dp": 5}):
    try:
        here.slice(**wrong)
    except (TypeError, IndexError) as error:
        print(type(error).__name__)
