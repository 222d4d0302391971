# A loader: coordinator, workers, hosts that join. No TensorFlow.
#
#   docker build -f deploy/loader.Dockerfile -t stoker-loader .
#
# If there is a folder `wheels` beside pyproject.toml, packages come from there alone, and no index is asked.
ARG BASE=python:3.13-slim

FROM ${BASE} AS packages
WORKDIR /source
COPY . .
ARG EXTRAS=loader
RUN if [ -d wheels ]; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/source/wheels; fi \
    && python3 -m venv /opt/stoker \
    && /opt/stoker/bin/pip install --no-cache-dir ".[${EXTRAS}]" \
    && /opt/stoker/bin/pip uninstall --yes setuptools pip

FROM ${BASE}
# Debian's latest is right: tini has no versions to choose from. A base that has tini needs no package index.
# hadolint ignore=DL3008
RUN command -v tini \
    || { apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*; }
COPY --from=packages /opt/stoker /opt/stoker
ENV PATH=/opt/stoker/bin:$PATH PYTHONUNBUFFERED=1
# What a host keeps (.stoker: bundles, caches) lies here; nothing else is written. A volume or a tmpfs that is mounted
# here has the same mode, so it is writable whoever the user is.
RUN install -d -m 1777 /var/cache/stoker
WORKDIR /var/cache/stoker
USER 65534:65534
ENTRYPOINT ["tini", "--", "loader-server"]
CMD ["--help"]
