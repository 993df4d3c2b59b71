# The server of `dtj serve`: Python, onnxruntime, FastAPI, and the part of dtj_trainer that serves models. It has neither
# PyTorch nor TensorFlow. docker/build.py builds the image and its context: wheelhouse/ (every Python package), dtj/
# (that part of this repository's trainer). The build needs BuildKit.

ARG BASE_IMAGE=debian:bookworm-slim


FROM ${BASE_IMAGE} AS system
# Versions are not pinned: Debian's archive keeps only one version for each release.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 dtj \
    && useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash --password '*' dtj
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1


FROM system AS packages
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
RUN --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    --mount=type=bind,source=requirements,target=/requirements \
    /opt/venv/bin/pip install --no-cache-dir --no-index --find-links=/wheelhouse \
        --constraint /requirements/constraints.txt --requirement /requirements/serve.txt


# The server is imported once, so that an image which lacks a module is not built.
FROM packages AS dtj
RUN --mount=type=bind,source=dtj,target=/source \
    --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    cp -r /source /tmp/dtj && mkdir -p /tmp/dtj/operator \
    && /opt/venv/bin/pip wheel --no-cache-dir --no-deps --no-index --find-links=/wheelhouse \
        --wheel-dir /dist /tmp/dtj \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps --no-index /dist/dtjob-*.whl \
    && rm /opt/venv/bin/dtj /opt/venv/bin/dtj-operator /opt/venv/bin/dtj-launch /opt/venv/bin/kubectl-dtj \
    && /opt/venv/bin/pip uninstall --yes setuptools pip \
    && /opt/venv/bin/python -m dtj_trainer.serving.serve --help


FROM system AS serve
COPY --from=dtj /opt/venv /opt/venv
USER 1000:1000
WORKDIR /home/dtj
EXPOSE 8080
ENTRYPOINT ["python", "-m", "dtj_trainer.serving.serve"]
