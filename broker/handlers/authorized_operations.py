"""What a principal may do to a resource, as replies list it: everything that exists, until ACLs say otherwise.

Numbers are Kafka's AclOperation: READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8, CLUSTER_ACTION 9,
DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11, IDEMPOTENT_WRITE 12.
"""

TOPIC_OPERATIONS = (3, 4, 5, 6, 7, 8, 10, 11)
CLUSTER_OPERATIONS = (5, 7, 8, 9, 10, 11, 12)
GROUP_OPERATIONS = (3, 6, 8, 10, 11)


def as_bits(operations: tuple[int, ...]) -> int:
    """For the schemas that carry a plain number."""
    return sum(1 << operation for operation in operations)
