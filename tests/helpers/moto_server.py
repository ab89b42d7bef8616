"""Serves S3 from memory with moto: python moto_server.py; writes the port that it took."""

import threading

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


def main() -> None:
    """Serves until the process is killed."""
    application = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ, start_response):
        # moto looks for the key and then writes it: of two at once, both could find none. S3 decides between them.
        with lock:
            return application(environ, start_response)

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    print(f"moto serves at port {server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
