"""Generates cases and asks Apache Kafka about them: `python -m tests.broker.acl_oracle.generate JARS`.

JARS is a directory with the jars of org.apache.kafka:kafka_2.13:4.1.1 and of what it needs, as Maven fetches them:
`mvn dependency:copy-dependencies`. Writes `cases.txt` beside this file: the lines that Oracle.java reads, and behind
those of each world a line `= answers`.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WORLDS = 160
QUERIES = 40
NAMES = ["a", "ab", "abc", "abd", "b", "ba", "x-1", "x-", "*", "zz"]
PRINCIPALS = ["User:alice", "User:bob", "User:*", "User:root"]
HOSTS = ["10.0.0.1", "10.0.0.2"]
TYPES = {2: NAMES, 3: NAMES, 4: ["kafka-cluster"], 5: NAMES}
OPERATIONS = range(2, 13)


def world(rng: random.Random) -> list[str]:
    lines = [f"W\t{rng.choice(['true', 'false'])}\t{rng.choice(['', 'User:root'])}"]
    bindings = set()
    for _ in range(rng.randrange(14)):
        resource = rng.choice([2, 2, 2, 3, 4, 5])
        pattern = 3 if resource == 4 else rng.choice([3, 4])
        name = rng.choice([name for name in TYPES[resource] if pattern == 3 or name != "*"])
        host = rng.choice(["*", "*", *HOSTS])
        operation, permission = rng.choice([2, *OPERATIONS]), rng.choice([2, 3, 3])
        bindings.add(
            f"A\t{resource}\t{name}\t{pattern}\t{rng.choice(PRINCIPALS[:3])}\t{host}\t{operation}\t{permission}"
        )
    lines += sorted(bindings)
    for _ in range(QUERIES):
        who = f"{rng.choice(['User:alice', 'User:bob', 'User:root'])}\t{rng.choice(HOSTS)}"
        resource = rng.choice([2, 2, 2, 3, 4, 5])
        operation = rng.choice(OPERATIONS[1:])
        if rng.randrange(6) == 0:
            lines.append(f"T\t{who}\t{operation}\t{rng.choice([2, 3, 5])}")
        else:
            name = rng.choice([name for name in TYPES[resource] if name != "*"] + (["abcd"] if resource != 4 else []))
            lines.append(f"Q\t{who}\t{operation}\t{resource}\t{name}")
    return lines


def main(jars: str) -> None:
    rng = random.Random(41)
    worlds = [world(rng) for _ in range(WORLDS)]
    text = "".join(line + "\n" for lines in worlds for line in lines)
    command = ["java", "-cp", f"{jars}/*", str(HERE / "Oracle.java")]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    answers = done.stdout.split()
    with (HERE / "cases.txt").open("w") as out:
        for lines, answer in zip(worlds, answers, strict=True):
            out.write("\n".join(lines) + f"\n= {answer}\n")


if __name__ == "__main__":
    main(sys.argv[1])
