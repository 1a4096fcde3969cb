# One agent of a fleet (docs/peers.md), or any other codecl command.
#
#   docker build -t codecl .
#   docker run -v ./fleet/agent-0:/agent:ro -v ./runs:/runs -p 7700:7700 codecl agent /agent/agent.yaml --out /runs
#
# The folders on the host should belong to user 1000, or give --user. PyTorch comes with CUDA, gigabytes of it. For
# an image without, name the index of PyTorch's CPU packages: --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.13-slim AS build
ARG PIP_EXTRA_INDEX_URL
WORKDIR /source
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/codecl \
    && /opt/codecl/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[peers]'

FROM python:3.13-slim
COPY --from=build /opt/codecl /opt/codecl
ENV PATH=/opt/codecl/bin:$PATH
# A new volume takes over the owner of the folder that it covers.
RUN useradd --create-home --uid 1000 agent && install -d -o agent -g agent /fleet /agent /runs
USER 1000
WORKDIR /home/agent
VOLUME /runs
EXPOSE 7700
# Ctrl-C: an agent that is stopped so can go on later.
STOPSIGNAL SIGINT
ENTRYPOINT ["codecl"]
CMD ["--help"]
