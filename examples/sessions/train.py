"""Two parameter servers and two workers on this machine, each a process as it would be on a machine of its own."""

import json
import os
import socket
import subprocess
import sys

COMMAND = [
    *(sys.executable, "-m", "trainer_client", "train", "--model", "sessions", "--feed", "tcp://127.0.0.1:7400"),
    *("--stream", "train", "--checkpoint", "checkpoints", "--epochs", "6", "--strategy", "parameter-server"),
    *("--server-memory", "2"),  # MiB for each server, of which the table takes more
]


def free_hosts(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    hosts = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return hosts


def main():
    cluster = {"ps": free_hosts(2), "worker": free_hosts(2)}
    processes = {}
    for kind, hosts in cluster.items():
        for at in range(len(hosts)):
            config = {"cluster": cluster, "task": {"type": kind, "index": at}}
            processes[kind, at] = subprocess.Popen(COMMAND, env={**os.environ, "TF_CONFIG": json.dumps(config)})
    try:  # servers end once all workers have left in good order
        chief = processes["worker", 0].wait()
        sys.exit(chief or max(process.wait() for process in processes.values()))
    finally:
        for process in processes.values():
            process.kill()


if __name__ == "__main__":
    main()
