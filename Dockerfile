# `grpo-guard serve`: docker build -t grpo-guard . &&
# docker run -p 8080:8080 -e GRPO_GUARD_TOKEN=... -v "$PWD:/guard" grpo-guard
FROM python:3.11-slim
# Rules and signatures need nothing more; "server,identity,judge" asks a language model,
# "server,identity,torch" reads log-probs.
ARG EXTRAS=server,identity
COPY . /source
RUN pip install --no-cache-dir "/source[${EXTRAS}]" && rm -rf /source
# Completions are hostile text: no root, and nothing to write to but the mounted folder.
RUN useradd --uid 1000 --create-home guard
USER guard
# Where guard.yaml lies, with what it names: a state folder, a module of your own.
WORKDIR /guard
EXPOSE 8080
ENTRYPOINT ["grpo-guard", "serve", "--host", "0.0.0.0"]
CMD ["-c", "guard.yaml"]
