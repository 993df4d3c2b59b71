# The TensorBoard that a job may have (spec.tensorboard): Python, TensorBoard without TensorFlow, boto3, and the part
# of dtj_trainer that fetches event files from the bucket.  docker/build.py builds the image and its context:
# wheelhouse/ (every Python package), dtj/ (that part of this repository's trainer). The build needs BuildKit.

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
        --constraint /requirements/constraints.txt --requirement /requirements/tensorboard.txt


FROM packages AS dtj
RUN --mount=type=bind,source=dtj,target=/source \
    --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    cp -r /source /tmp/dtj && mkdir -p /tmp/dtj/operator \
    && /opt/venv/bin/pip wheel --no-cache-dir --no-deps --no-index --find-links=/wheelhouse \
        --wheel-dir /dist /tmp/dtj \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps --no-index /dist/dtjob-*.whl \
    && rm /opt/venv/bin/dtj /opt/venv/bin/dtj-operator /opt/venv/bin/dtj-launch /opt/venv/bin/kubectl-dtj \
    && /opt/venv/bin/pip uninstall --yes pip


FROM system AS tensorboard
COPY --from=dtj /opt/venv /opt/venv
USER 1000:1000
WORKDIR /home/dtj
EXPOSE 6006
ENTRYPOINT ["python", "-m", "dtj_trainer.tensorboard_pod"]
