# The operator's image: Python and the operator's packages, nothing else.
#
# docker/build.py builds the image and its context: wheelhouse/ (every Python package),
# dtj/ (this repository's operator, and the contract that it shares with the trainer). The build needs BuildKit.

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
        --constraint /requirements/constraints.txt --requirement /requirements/operator.txt


FROM packages AS dtj
RUN --mount=type=bind,source=dtj,target=/source \
    --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    cp -r /source /tmp/dtj \
    && /opt/venv/bin/pip wheel --no-cache-dir --no-deps --no-index --find-links=/wheelhouse \
        --wheel-dir /dist /tmp/dtj \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps --no-index /dist/dtjob-*.whl \
    && rm /opt/venv/bin/dtj-launch \
    && /opt/venv/bin/pip uninstall --yes setuptools pip


FROM system AS operator
COPY --from=dtj /opt/venv /opt/venv
USER 1000:1000
WORKDIR /home/dtj
ENTRYPOINT ["dtj-operator"]
