"""What our processes have in common: here, that forked children keep none of their ports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CHILD = """
import json, os, socket, sys
from loader_server.machine.processes import keep_ports_from_children

def serve():
    listening = socket.create_server(("127.0.0.1", 0))
    caller = socket.create_connection(listening.getsockname())
    return listening, listening.accept()[0], caller

ours, theirs = serve(), serve()
pair = socket.socketpair()
keep_ports_from_children([ours[0].getsockname()[1]])
if not os.fork():
    def is_open(one):
        try:
            return bool(os.fstat(one.fileno()))
        except OSError:
            return False
    print(json.dumps([[is_open(one) for one in some] for some in (ours, theirs, pair)]), flush=True)
    os._exit(0)
os.wait()
print(json.dumps(all(one.fileno() >= 0 and os.fstat(one.fileno()) for one in ours)))
"""


def test_a_forked_child_closes_what_it_inherits_of_our_ports_and_nothing_else():
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    child, parent = done.stdout.splitlines()
    listening, accepted, caller = json.loads(child)[0]
    assert (listening, accepted) == (False, False)
    assert caller, "its local port is another"
    assert json.loads(child)[1:] == [[True, True, True], [True, True]]
    assert json.loads(parent)
