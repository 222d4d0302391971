from collections import Counter
from types import SimpleNamespace

from trainer_client.core.asking.shard_holders import ShardHolders


def worker(number, **other):
    return SimpleNamespace(**{"name": f"w{number}", "incarnation": number, "busy_until_s": 0.0, **other})


def entry(number, epoch=0, *, refused=(), askers=()):
    position = SimpleNamespace(epoch=epoch)
    return SimpleNamespace(
        batch=SimpleNamespace(number=number, position=position), refused=dict.fromkeys(refused), askers=askers
    )


WORKERS = [worker(number) for number in range(4)]


def names(holders, live, epoch=0, shards=8, at=0):
    """The holders of all shards at one of their elements."""
    return [holders.holder(entry(at * shards + shard, epoch), live, 1.0).name for shard in range(shards)]


def test_shards_are_shared_out_evenly_and_alike_by_all_trainers():
    first = names(ShardHolders(8), WORKERS)
    assert Counter(first) == {one.name: 2 for one in WORKERS}
    assert first == names(ShardHolders(8), WORKERS[::-1])
    holders = ShardHolders(8)
    assert [holders.holder(entry(8 + n), WORKERS, 1.0).name for n in range(8)] == first


def test_a_lost_workers_shards_alone_move_and_do_not_come_back_before_the_next_epoch():
    holders = ShardHolders(8)
    first = names(holders, WORKERS)
    second = names(holders, WORKERS[1:], at=8)
    assert [one for one, other in zip(first, second, strict=True) if one != other] == ["w0", "w0"]
    assert names(holders, WORKERS, at=9) == second
    assert names(holders, WORKERS, epoch=1) == first


def test_workers_that_come_while_shards_are_young_get_their_share():
    holders = ShardHolders(8)
    assert set(names(holders, WORKERS[:1])) == {"w0"}
    assert names(holders, WORKERS, at=7) == names(ShardHolders(8), WORKERS)
    holders = ShardHolders(8)
    assert set(names(holders, WORKERS[:1], at=7)) == set(names(holders, WORKERS, at=8)) == {"w0"}


def test_who_is_busy_or_has_it_is_waited_for():
    holders = ShardHolders(1)
    holder = holders.holder(entry(0), WORKERS, 1.0)
    assert holders.holder(entry(0, askers=(holder.incarnation,)), WORKERS, 1.0) is None
    holder.busy_until_s = 2.0
    assert [holders.holder(entry(0), WORKERS, now_s) for now_s in (1.9, 2.0)] == [None, holder]
    holder.busy_until_s = 0.0


def test_what_a_worker_refused_is_asked_of_others_and_the_shard_stays():
    holders = ShardHolders(1)
    holder = holders.holder(entry(0), WORKERS, 1.0)
    other = holders.holder(entry(0, refused=[holder.incarnation]), WORKERS, 1.0)
    assert other.name != holder.name
    assert holders.holder(entry(1), WORKERS, 1.0) is holder
    assert holders.holder(entry(0, refused=range(4)), WORKERS, 1.0) is None
    assert holders.holder(entry(0), [], 1.0) is None
