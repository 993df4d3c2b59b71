# The trainer's images for TensorFlow: Python, TensorFlow and Keras 3, dtj_trainer, and Horovod on top.
#
# docker/build.py builds the images and their context: wheelhouse/ (every Python package, and
# Horovod's wheel), horovod/ (Horovod's patched source), dtj/ (this repository's trainer). The build
# needs BuildKit. Targets, each made from the one before:
#
#   tensorflow        the base of a user's own image, without dtj_trainer
#   trainer           entry point dtj-launch, and the built-in programs; parameter servers, workers, chief
#   trainer-horovod   the same with Open MPI, sshd and Horovod
#
# None of the images has TensorBoard, because TensorBoard reads no s3:// where TensorFlow is installed.
#
# For NVIDIA GPUs, use the first two: docs/gpu-images.md.

ARG BASE_IMAGE=debian:bookworm-slim
# The image that compiles Horovod with HOROVOD_FROM=source.
ARG BUILD_IMAGE=${BASE_IMAGE}
# wheelhouse: packages are in the context. index: pip uses the package index.
ARG PACKAGES_FROM=wheelhouse
# wheelhouse: Horovod's wheel is in the context. source: Horovod is compiled here.
ARG HOROVOD_FROM=wheelhouse


FROM ${BASE_IMAGE} AS system
# Versions are not pinned: Debian's archive keeps only one version for each release.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates python3 tini \
    && rm -rf /var/lib/apt/lists/*
# - uid 1000 gets a user name of ours, because Ubuntu's images have another user with this uid. The password `*`
# allows logins by key; sshd rejects an account that is locked by `!`. - Group 0 may write /etc/passwd: OpenShift runs
# pods with a uid unknown to the image, and start.sh adds an entry.
RUN if id 1000 >/dev/null 2>&1; then userdel --remove "$(id -un 1000)"; fi \
    && groupadd --gid 1000 dtj \
    && useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash --password '*' dtj \
    && chmod g=u /etc/passwd \
    && install --directory --owner=1000 --group=1000 /dtj
# - LD_LIBRARY_PATH: GKE mounts the GPU driver in these folders; they do not exist elsewhere. -
# NVIDIA_DRIVER_CAPABILITIES: without it, old NVIDIA runtimes add the GPU without CUDA's driver. -
# NVIDIA_VISIBLE_DEVICES: NVIDIA's images set `all`, which shows all GPUs of a node to a pod that requested none. For
# a pod with GPUs, the device plugin sets the variable.
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


# Includes Horovod's few dependencies, so that Horovod is compiled in the same environment.
FROM python AS packages-wheelhouse
RUN --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    --mount=type=bind,source=requirements,target=/requirements \
    /opt/venv/bin/pip install --no-cache-dir --no-index --find-links=/wheelhouse \
        --constraint /requirements/constraints.txt --requirement /requirements/tensorflow.txt \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps --no-index --find-links=/wheelhouse \
        --requirement /requirements/alone.txt

FROM python AS packages-index
ARG TENSORFLOW=tensorflow-cpu
# pip's own settings, for example a mirror. They appear in the image's history: use no passwords.
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
# Remove TensorFlow's headers, the library of its binding generator, and symbol tables: 560 MB. Nothing is compiled in
# the image.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends binutils \
    && rm -r /opt/venv/lib/python3*/site-packages/tensorflow/include \
    && rm /opt/venv/lib/python3*/site-packages/clang/native/libclang.so \
    && strip --strip-unneeded /opt/venv/lib/python3*/site-packages/tensorflow/libtensorflow_*.so.2


FROM python AS dtj
# The wheel contains only the trainer, so that a change of the operator does not change this image.
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
    pip install --no-cache-dir --no-deps --no-index /dist/dtjob-*.whl \
    && rm /opt/venv/bin/dtj /opt/venv/bin/dtj-operator
USER 1000:1000
# tini reaps orphans of ranks. Without -g, tini forwards a signal to dtj-launch alone, which decides when other
# processes get a signal.
ENTRYPOINT ["/usr/bin/tini", "--", "dtj-launch"]


FROM trainer AS trainer-horovod
USER 0:0
# - sshd needs /run/sshd even without root.
# - Without CAP_SYS_PTRACE, ranks of one pod can't read each other's memory. The setting keeps Open MPI from warning
#   about it. Debian's file lacks a newline at its end.
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
