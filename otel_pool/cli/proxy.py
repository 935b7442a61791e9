"""`otel-pool proxy`: a model proxy in front of engines."""

from __future__ import annotations

import click

from otel_pool.proxy.plan import Plan, PlanError

_DEFAULT = Plan(engines=("http://127.0.0.1:9001",))
_CONNECTIONS = click.IntRange(min=0, max=10**6)
_SECONDS = click.FloatRange(min=0.0, max=86_400.0, min_open=True)


@click.command(context_settings={"show_default": True})
@click.option("--engine", "engines", multiple=True, metavar="URL", required=True, help="An engine; give it once each.")
@click.option("--workers", type=click.IntRange(1, 512), default=_DEFAULT.workers, help="Worker processes.")
@click.option("--limit", type=_CONNECTIONS, default=_DEFAULT.limit, help="Connections of all workers; 0 for no limit.")
@click.option(
    "--limit-per-host",
    type=_CONNECTIONS,
    default=_DEFAULT.limit_per_host,
    help="Connections of all workers to one engine; 0 for no limit.",
)
@click.option("--host", default=_DEFAULT.host, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=_DEFAULT.port, help="Port to listen on; 0 for any.")
@click.option(
    "--session-header",
    "session_headers",
    multiple=True,
    default=_DEFAULT.session_headers,
    help="Header that names a session; a session stays with one engine.",
)
@click.option("--max-body-bytes", type=click.IntRange(min=0), default=_DEFAULT.max_body_bytes, help="Largest body.")
@click.option(
    "--queue-timeout", type=_SECONDS, default=_DEFAULT.queue_timeout, help="Longest wait for a connection, seconds."
)
@click.option("--connect-timeout", type=_SECONDS, default=_DEFAULT.connect_timeout, help="Longest TCP and TLS set-up.")
@click.option("--idle-timeout", type=_SECONDS, default=_DEFAULT.idle_timeout, help="Longest silence of an engine.")
@click.option("--request-timeout", type=_SECONDS, default=_DEFAULT.request_timeout, help="Longest call, seconds.")
@click.option(
    "--keepalive", type=_SECONDS, default=_DEFAULT.keepalive, help="Seconds an idle connection to an engine is kept."
)
@click.option("--gate", is_flag=True, help="Hold requests before each engine by its gauges: OTEL_POOL_ADMISSION_*.")
@click.option("--graceful-timeout", type=click.IntRange(1, 3600), default=_DEFAULT.graceful_timeout, help="On SIGTERM.")
def command(**options: object) -> None:
    """Serve a model proxy in front of engines.

    It streams bytes through unchanged, keeps a session on one engine, and divides the limits by its workers. Run it
    under `opentelemetry-instrument` to see how long calls wait for a connection, per worker.
    """
    from otel_pool.proxy.serve import serve  # noqa: PLC0415  # gunicorn is not imported for --help

    try:
        serve(Plan(**options))  # type: ignore[arg-type]  # click has checked the types
    except PlanError as error:
        raise click.UsageError(str(error)) from error
