from loader_server.planning.ordinals import OrdinalPlan
from shared.wire.batch_layout import BucketShape

LARGEST = BucketShape(rows=1, lengths={"tokens:values": 9})


def plan(**other):
    return OrdinalPlan(**{"producers": 3, "elements": 5, "largest": LARGEST, "made_from": ("index",), **other})


def test_an_epoch_has_room_for_every_shard_in_whole_groups():
    assert [plan().epoch(epoch, 1).batches for epoch in range(3)] == [15, 15, 15]
    assert (plan().most_batches(4), plan().epoch(7, 4).batches) == (16, 16)
    assert plan().objection(4096) is None


def test_a_batch_has_its_number_and_the_largest_shape():
    batch = plan().epoch(2, 1).batch(14)
    assert (batch.samples.tolist(), batch.shape) == ([14], LARGEST)


def test_what_decides_the_batches_is_in_the_digest():
    digests = {plan(**other).digest for other in ({}, {"producers": 5}, {"elements": 6}, {"made_from": ("other",)})}
    assert len(digests) == 4
    assert plan().digest == plan().digest
