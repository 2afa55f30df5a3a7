"""Ask workers and dashboards whether they are healthy: `health`, for probes that execute a command."""

from __future__ import annotations

import http.client

import click

from holdfast.cli.output import note
from holdfast.cli.root import FAILED, holdfast
from holdfast.cli.worker import parse_address

TIMEOUT_S = 3.0
MAX_BODY_BYTES = 65536


@holdfast.command(takes=("debug",))
@click.argument("addresses", metavar="[HOST:]PORT...", nargs=-1, required=True)
@click.option("--ready", is_flag=True, help="Ask /readyz: does it work?  [default: /livez: is it alive?]")
@click.option(
    "--timeout", type=click.FloatRange(0.1, 60), default=TIMEOUT_S, show_default=True, help="Seconds per address."
)
def health(addresses: tuple[str, ...], ready: bool, timeout: float) -> int:
    """Ask a worker with --health, or a dashboard, whether it is healthy.

    Exits with 0 if all addresses answer that all checks passed, otherwise with 1. The checks that failed are printed.

    \b
    Examples:
      holdfast health 8080
      holdfast health 8080 8081 --ready
      holdfast health dashboard:8787 --ready
    """
    path = "/readyz" if ready else "/livez"
    problems = [_problem(*parse_address(each, hint="[HOST:]PORT"), path, timeout) for each in addresses]
    for address, problem in zip(addresses, problems, strict=True):
        if problem is not None:
            note(f"{address}: {problem}")
    return FAILED if any(problem is not None for problem in problems) else 0


def _problem(host: str, port: int, path: str, timeout_s: float) -> str | None:
    """Return what is wrong at an address; None if it is healthy."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Host": "localhost"})
        answer = connection.getresponse()
        body = answer.read(MAX_BODY_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {str(error) or type(error).__name__}"
    finally:
        connection.close()
    if answer.status == http.client.OK:
        return None
    failed = [line for line in body.splitlines() if " failed: " in line]
    return "; ".join(failed) or f"{path} answered with status {answer.status}"
