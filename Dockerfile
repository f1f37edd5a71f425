# A model behind HTTP, by a user without rights, on a file system that may be read-only; see docs/how-to/container.md
FROM python:3.11-slim AS build
ARG PIP_ARGS=""
COPY pyproject.toml README.md LICENSE constraints.txt /src/
COPY demur /src/demur
RUN python -m venv /opt/demur \
 && /opt/demur/bin/pip install --no-cache-dir ${PIP_ARGS} -c /src/constraints.txt "/src[serve]"

FROM python:3.11-slim
COPY --from=build /opt/demur /opt/demur
ENV PATH=/opt/demur/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
WORKDIR /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
ENTRYPOINT ["demur", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/models/model.demur"]
