"""Equal, ordered ranges into which all hashes are divided: state partitions, hash ranges and slots. Without numpy."""

_LOWEST = -(1 << 63)
_HALF_BITS = 32


def hash_bounds(partition: int, partitions: int) -> tuple[int, int]:
    return _lowest_hash(partition, partitions), _lowest_hash(partition + 1, partitions) - 1


def partition_of_hash(hashed: int, partitions: int) -> int:
    """Return the state partition of one hash: `hashing.partition_of` without numpy."""
    return ((hashed - _LOWEST >> _HALF_BITS) * partitions) >> _HALF_BITS


def _lowest_hash(partition: int, partitions: int) -> int:
    upper_half = -(-(partition << _HALF_BITS) // partitions)
    return (upper_half << _HALF_BITS) + _LOWEST
