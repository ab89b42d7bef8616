# `ctr` on a processor (x86-64), with nothing but Docker:
#   docker build --tag ctr .
#   mkdir -p runs && docker run --rm --volume "$PWD/runs:/ctr/runs" ctr demo
# The report is then runs/demo/report.html. Who is not user 1000 adds --user "$(id -u):$(id -g)".

# The packages that ctr needs, without ctr: a layer that changes only with their versions.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS dependencies
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml uv.lock /lock/
COPY .ci/locked_uv.py /lock/.ci/
RUN python /lock/.ci/locked_uv.py > /tmp/uv.txt \
    && python -m pip install --no-cache-dir --require-hashes --requirement /tmp/uv.txt \
    && uv export --project /lock --quiet --frozen --no-emit-project --extra train --extra cloud --group image \
        --no-emit-package tensorflow --no-emit-package libclang > /tmp/packages.txt \
    && python -m venv --without-pip /opt/ctr \
    && python -m pip --python /opt/ctr/bin/python install --no-cache-dir --no-compile --no-deps --require-hashes \
        --requirement /tmp/packages.txt
# What no program needs that runs: headers, tests, names of symbols (of these packages; others do not load without). The
# imports show that all still loads, and leave the bytecode of what they load, which the user of the image cannot write.
WORKDIR /opt/ctr/lib/python3.11/site-packages
RUN rm -rf tensorflow/include pyarrow/include \
    && find . -type d -name tests -prune -exec rm -rf {} + \
    && find apache_beam pyarrow tensorflow zstandard -type f -name '*.so*' -size +1M -exec strip --strip-unneeded {} + \
    && /opt/ctr/bin/python -c "import apache_beam, jinja2, keras, matplotlib.pyplot, obstore, pandas, \
        pyarrow.dataset, pyarrow.parquet, pydantic, tensorboard.summary, tensorflow, tensorflow_serving.apis.prediction_service_pb2_grpc, tf_keras, tqdm, yaml"

FROM dependencies AS wheel
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY eval eval
COPY models models
COPY optim optim
COPY pipelines pipelines
COPY ctr ctr
RUN python -m pip --python /opt/ctr/bin/python wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel .

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
RUN useradd --uid 1000 --create-home ctr && install --directory --owner ctr /ctr /ctr/runs
COPY --from=dependencies /opt/ctr /opt/ctr
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    python -m pip --python /opt/ctr/bin/python install --no-cache-dir --no-deps --no-index /wheel/*.whl
ENV PATH=/opt/ctr/bin:$PATH MPLCONFIGDIR=/tmp/matplotlib PYTHONUNBUFFERED=1
USER 1000
WORKDIR /ctr
ENTRYPOINT ["ctr"]
CMD ["--help"]
