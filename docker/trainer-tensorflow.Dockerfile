# The trainer's images for TensorFlow: Python, TensorFlow and Keras 3, dtj_trainer, and Horovod on top.
#
# Built by docker/build.py, which puts the context together: wheelhouse/ (every Python package, and
# Horovod's wheel), horovod/ (Horovod's patched source), dtj/ (this repository's trainer). It needs
# BuildKit. Targets, each made from the one before:
#
#   tensorflow        what a user's own image starts from: no dtj_trainer in it
#   trainer           entry point dtj-launch, and the built-in programs; parameter servers, workers, chief
#   trainer-horovod   the same with Open MPI, sshd and Horovod
#
# TensorBoard is in none of them: it reads no s3:// where TensorFlow is installed.
#
# For NVIDIA GPUs, the first two: docs/gpu-images.md.

ARG BASE_IMAGE=debian:bookworm-slim
# What compiles Horovod when HOROVOD_FROM=source.
ARG BUILD_IMAGE=${BASE_IMAGE}
# wheelhouse: packages lie in the context. index: pip asks the package index.
ARG PACKAGES_FROM=wheelhouse
# wheelhouse: Horovod's wheel lies in the context. source: it is compiled here.
ARG HOROVOD_FROM=wheelhouse


FROM ${BASE_IMAGE} AS system
# The versions are the base image's release's: Debian keeps no others.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates python3 tini \
    && rm -rf /var/lib/apt/lists/*
# uid 1000 under a name of its own (Ubuntu's images have a user there already); `*` is no password,
# where `!` would be a locked account, which sshd turns away. A user of group 0 may write /etc/passwd: OpenShift runs pods as a
# user that no image knows, and start.sh adds it
RUN if id 1000 >/dev/null 2>&1; then userdel --remove "$(id -un 1000)"; fi \
    && groupadd --gid 1000 dtj \
    && useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash --password '*' dtj \
    && chmod g=u /etc/passwd \
    && install --directory --owner=1000 --group=1000 /dtj
# - LD_LIBRARY_PATH: where GKE puts the driver of its nodes' GPUs; nothing is there elsewhere
# - NVIDIA_DRIVER_CAPABILITIES: without it older runtimes of NVIDIA's give a container the GPU without CUDA's driver
# - NVIDIA_VISIBLE_DEVICES: NVIDIA's images say `all`, by which a pod that asked for no GPU sees every one of its node;
#   for a pod that did ask the device plugin sets it
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_VISIBLE_DEVICES=void \
    PYTHONUNBUFFERED=1


FROM ${BUILD_IMAGE} AS python
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv


# With what Horovod needs, which is little, so that it is compiled in the same environment.
FROM python AS packages-wheelhouse
RUN --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    --mount=type=bind,source=requirements,target=/requirements \
    /opt/venv/bin/pip install --no-cache-dir --no-index --find-links=/wheelhouse \
        --constraint /requirements/constraints.txt --requirement /requirements/tensorflow.txt \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps --no-index --find-links=/wheelhouse \
        --requirement /requirements/alone.txt

FROM python AS packages-index
ARG TENSORFLOW=tensorflow-cpu
# pip's own settings, as for a mirror. They show in the image's history: no passwords.
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
RUN --mount=type=bind,source=requirements,target=/requirements \
    sed "s/^tensorflow-cpu==/$TENSORFLOW==/" /requirements/tensorflow.txt > /tmp/tensorflow.txt \
    && /opt/venv/bin/pip install --no-cache-dir \
        --constraint /requirements/constraints.txt --requirement /tmp/tensorflow.txt \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps --requirement /requirements/alone.txt


# hadolint ignore=DL3006
FROM packages-${PACKAGES_FROM} AS packages


FROM packages AS horovod-wheelhouse
RUN --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    mkdir /wheels && cp /wheelhouse/horovod-*.whl /wheels/

FROM packages AS horovod-source
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        cmake g++ libopenmpi-dev make openmpi-bin python3-dev
# hadolint ignore=SC2046,SC2155
RUN --mount=type=bind,source=horovod,target=/horovod \
    --mount=type=bind,source=requirements,target=/requirements \
    cp -r /horovod /tmp/horovod \
    && export $(cat /requirements/horovod-build.env) MAKEFLAGS="-j$(nproc)" \
    && /opt/venv/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /tmp/horovod


# hadolint ignore=DL3006
FROM horovod-${HOROVOD_FROM} AS horovod-wheel


FROM packages AS venv
# Without TensorFlow's headers, the library of its generator of bindings, and its libraries' symbol tables:
# nothing compiles in the image, and this is 560 MB.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends binutils \
    && rm -r /opt/venv/lib/python3*/site-packages/tensorflow/include \
    && rm /opt/venv/lib/python3*/site-packages/clang/native/libclang.so \
    && strip --strip-unneeded /opt/venv/lib/python3*/site-packages/tensorflow/libtensorflow_*.so.2


FROM python AS dtj
# Only the trainer's half of the distribution: a change of the operator doesn't touch this image.
RUN --mount=type=bind,source=dtj,target=/source \
    --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    cp -r /source /tmp/dtj && mkdir -p /tmp/dtj/operator \
    && /opt/venv/bin/pip wheel --no-cache-dir --no-deps --no-index --find-links=/wheelhouse \
        --wheel-dir /dist /tmp/dtj


FROM system AS tensorflow
COPY --from=venv /opt/venv /opt/venv
USER 1000:1000
WORKDIR /dtj
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python"]


FROM tensorflow AS needs-wheelhouse
USER 0:0
RUN --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    --mount=type=bind,source=requirements,target=/requirements \
    pip install --no-cache-dir --no-index --find-links=/wheelhouse \
        --constraint /requirements/constraints.txt --requirement /requirements/trainer.txt
USER 1000:1000

FROM tensorflow AS needs-index
USER 0:0
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
RUN --mount=type=bind,source=requirements,target=/requirements \
    pip install --no-cache-dir \
        --constraint /requirements/constraints.txt --requirement /requirements/trainer.txt
USER 1000:1000


# hadolint ignore=DL3006
FROM needs-${PACKAGES_FROM} AS trainer
USER 0:0
RUN --mount=type=bind,from=dtj,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/dtj-*.whl \
    && rm /opt/venv/bin/dtj /opt/venv/bin/dtj-operator
USER 1000:1000
# tini reaps what ranks leave behind. It passes a signal to dtj-launch alone (no -g): that one decides
# who else gets it, and when.
ENTRYPOINT ["/usr/bin/tini", "--", "dtj-launch"]


FROM trainer AS trainer-horovod
USER 0:0
# - /run/sshd: sshd asks for it even when it isn't root
# - without CAP_SYS_PTRACE ranks of one pod can't read each other's memory: Open MPI is told so, or it warns;
#   Debian's file has no newline at its end
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        openmpi-bin openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && install --directory /run/sshd \
    && printf '\nbtl_vader_single_copy_mechanism = none\n' >> /etc/openmpi/openmpi-mca-params.conf
RUN --mount=type=bind,from=horovod-wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-deps --no-index /wheels/horovod-*.whl
RUN --mount=type=bind,source=requirements,target=/requirements \
    python -B /requirements/gpu_check.py image
USER 1000:1000
