"""Sends requests on to a server after a wait, as a process of its own: python slow_way.py HOST:PORT SECONDS."""

import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))

from http_proxy import Answer, Request, forward, served

if __name__ == "__main__":
    upstream, seconds = f"http://{sys.argv[1]}", float(sys.argv[2])

    def answer(request: Request) -> Answer:
        time.sleep(seconds)
        return forward(upstream, request)

    with served(answer) as address:
        print(f"serves at {address}", flush=True)
        threading.Event().wait()
