"""Serves the last metrics window of a training run to Prometheus, on the loopback interface.

python serve_metrics.py runs/first --port 9090       # http://127.0.0.1:9090/metrics
"""

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def metrics_text(run: Path) -> str:
    """Returns the numbers of the last line of metrics.jsonl and follow.jsonl in Prometheus' text format."""
    lines = []
    for file, prefix in (("metrics.jsonl", "ctr"), ("follow.jsonl", "ctr_follow")):
        written = (run / file).read_text().splitlines() if (run / file).is_file() else []
        for name, value in json.loads(written[-1]).items() if written else ():
            if type(value) in (int, float):
                lines.append(f"{prefix}_{re.sub('[^a-zA-Z0-9_]', '_', name)} {value}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--port", type=int, default=9090)
    arguments = parser.parse_args()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(metrics_text(arguments.run).encode())

    ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()
