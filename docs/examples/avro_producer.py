"""Sends flights in Avro by Confluent's own serializer, which registers their schema.

    python docs/examples/avro_producer.py BOOTSTRAP REGISTRY TOPIC

The first half has the schema of last year, the second half that of this year, with one field more. Both go on being
readable by the id that each value begins with. Needs `pip install "confluent-kafka[avro,schemaregistry]"`.
"""

import sys

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

CARRIER = '{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"], "default": null}'
TAIL = ', {"name": "tail", "type": "string", "default": ""}'
FLIGHTS = 100


def main(bootstrap: str, registry: str, topic: str) -> None:
    client = SchemaRegistryClient({"url": registry})
    producer = Producer({"bootstrap.servers": bootstrap})
    place = SerializationContext(topic, MessageField.VALUE)
    for year, fields in ((2012, CARRIER), (2013, CARRIER + TAIL)):
        schema = f'{{"type": "record", "name": "Flight", "fields": [{fields}]}}'
        serialize = AvroSerializer(client, schema)
        for number in range(FLIGHTS):
            flight = {"carrier": "UA", "delay": number if number % 10 else None, "tail": f"N{year}{number}"}
            producer.produce(topic, key=f"{year}-{number}", value=serialize(flight, place))
    if left := producer.flush(60):
        sys.exit(f"{left} flights were not acknowledged")


if __name__ == "__main__":
    main(*sys.argv[1:])
