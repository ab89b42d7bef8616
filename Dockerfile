# The demo on a machine with nothing but Docker:
#   docker build --tag ctr . && docker run --rm --volume "$PWD/runs:/ctr/runs" ctr
# The report is then runs/demo/report.html.
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /ctr
COPY Makefile pyproject.toml setup.py requirements.lock README.md LICENSE ./
COPY ctr ctr
COPY eval eval
COPY models models
COPY optim optim
COPY pipelines pipelines
RUN make .venv/.installed
CMD ["make", "demo"]
