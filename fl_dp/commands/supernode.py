"""`fl-dp supernode`: Flower's SuperNode behind the owner's gate."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .console import exit_on_errors, fail, note, out, tell

if TYPE_CHECKING:  # with what it imports, which other commands can spare
    from fl_dp.gate.app_user import AppUser
    from fl_dp.gate.figures import GateFigures
    from fl_dp.gate.gate import Gate
    from fl_dp.gate.gated_supernode import LinkOptions
    from fl_dp.gate.isolation import Guarded
    from fl_dp.gate.link import Link

OTHER_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of the command: unknown options are Flower's."""

_ISOLATION, _NODE_CONFIG = "--isolation", "--node-config"
_INSTALLS = "--allow-runtime-dependency-installation"
_KEY, _TRUSTED, _SUPERLINK = (
    "--auth-supernode-private-key",
    "--trusted-entities",
    "--superlink",
)


def supernode(
    ctx: typer.Context,
    policy: Annotated[
        Path,
        typer.Option(
            "--policy", metavar="POLICY", help="File of the owner's policy.", show_default=False
        ),
    ],
    app_user: Annotated[
        str | None,
        typer.Option(
            "--app-user",
            metavar="USER",
            help="Start neither desk nor SuperNode: this user's apps run beside a SuperNode of "
            "theirs.",
        ),
    ] = None,
    app_socket: Annotated[
        Path | None,
        typer.Option(
            "--app-socket",
            metavar="SOCKET",
            help="Unix socket of the desk, the one way out that apps and their SuperNode have.",
        ),
    ] = None,
    desk_socket: Annotated[
        Path | None,
        typer.Option(
            "--desk-socket",
            metavar="SOCKET",
            help="Unix socket of the gate, to which its desk connects. Who may open its folder "
            "may answer for this site.",
        ),
    ] = None,
    cooperative: Annotated[
        bool,
        typer.Option(
            "--cooperative",
            help="Start desk and SuperNode, too, all as this user. An app can then read the "
            "ledger and open sockets: what is enforced holds for apps that don't try.",
        ),
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=1,
            max=65535,
            metavar="PORT",
            help="Port of 127.0.0.1 with /metrics for Prometheus: budget left, answers, refusals, "
            "when the SuperLink was seen, and when its certificate ends.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Start nothing: try what an app of USER could do on this machine, and print it. "
            "Needs root, which leaves the result for the gate.",
        ),
    ] = False,
) -> None:
    """Run Flower's SuperNode behind a gate, which clips and noises what leaves this site.

    The gate holds for any app that the server sends, and apps need not know of it. POLICY is the
    file of the owner's policy, with the keys `dp-gate-promise`, `dp-gate-clipping-norm`,
    `dp-gate-noise-multiplier` and `dp-gate-answer-after` besides those of a node. All other options
    are those of `flower-supernode`.

    Apps and their SuperNode run as another user, who can't read POLICY or the ledger: name it by
    `--app-user`, and start `flower-supernode` as that user. With `--cooperative` all is one user.
    With `--check` the status is 1 if an app could go around the gate.
    """
    options = list(ctx.args)
    with exit_on_errors():
        _require_one_way(
            options,
            app_user=app_user,
            desk_socket=desk_socket,
            check=check,
            cooperative=cooperative,
        )
        _require_no_policy(options)
        from fl_dp.gate.app_user import AppUser
        from fl_dp.gate.figures import GateFigures
        from fl_dp.gate.gated_supernode import checked_gate
        from fl_dp.gate.isolation import found_isolated

        policy = policy.expanduser().absolute()
        _require_own_packages(options, policy)
        user = None if app_user is None else AppUser.named(app_user)
        guarded = _guarded(policy, options, app_socket)
        if check:
            _print_check(policy, user, guarded)
            return
        isolated = user is not None and found_isolated(policy, user, guarded)
        link_options, others = _link_options(options)
        figures = GateFigures()
        gate, link = checked_gate(policy, isolated=isolated), link_options.link(figures)
        if metrics_port is not None:
            _serve_figures(metrics_port, figures, policy)
    note(_words_of_isolation(app_user, isolated=isolated))
    _run(gate, link, policy, desk_socket, others, figures)


def _serve_figures(port: int, figures: GateFigures, policy: Path) -> None:
    """Show figures to Prometheus from now on.

    Raises:
        ValueError: The port is in use.
    """
    from fl_dp.app.tracking.loopback_page import LoopbackPage, PageGauge
    from fl_dp.gate.figures import FiguresOfNode

    shown = FiguresOfNode(figures, policy)
    try:
        LoopbackPage(port, lambda: (PageGauge(*figure) for figure in shown()))
    except OSError as error:
        raise ValueError(
            f"--metrics-port {port} can't be used on 127.0.0.1 ({error.strerror}): choose another"
        ) from error


def _run(
    gate: Gate,
    link: Link,
    policy: Path,
    desk_socket: Path | None,
    supernode: list[str],
    figures: GateFigures,
) -> NoReturn:
    """Run a gate; without a socket for its desk, with desk and SuperNode of its own."""
    from fl_dp.gate.gated_supernode import own_site, run_gate
    from fl_dp.gate.link import LinkLost, LinkRefused

    # What contains an app's failure contains SystemExit, too: the gate would go on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if desk_socket is not None:
            run_gate(gate, link, policy, desk_socket, lambda: None, figures)
        python = [sys.executable, "-P", "-m"]
        node = [*python, "fl_dp.app.local.local_supernode", *supernode]
        with own_site(node, [*python, "fl_dp.app.local.local_desk"]) as (gate_socket, started):
            run_gate(gate, link, policy, gate_socket, started.kill, figures)
    except (LinkLost, LinkRefused) as error:
        fail(f"{error}", status=2)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _link_options(options: list[str]) -> tuple[LinkOptions, list[str]]:
    """Return what of Flower's options is the gate's, and the others, which are the SuperNode's.

    Raises:
        ValueError: No SuperLink is named.
    """
    from fl_dp.app.local.local_supernode import superlink_parser
    from fl_dp.gate.gated_supernode import LinkOptions

    parser = superlink_parser()
    parser.add_argument(_KEY, type=Path)
    try:
        own, others = parser.parse_known_args(options)
    except argparse.ArgumentError as error:
        raise ValueError(f"{error}") from None
    if own.superlink is None:
        raise ValueError(f"no SuperLink is named: add {_SUPERLINK} HOST:PORT")
    if own.insecure and own.auth_supernode_private_key is not None:
        raise ValueError(f"--insecure sends what {_KEY} signs without TLS: leave one of them out")
    link = LinkOptions(
        superlink=own.superlink,
        insecure=own.insecure,
        roots=own.root_certificates,
        key=own.auth_supernode_private_key,
    )
    return link, others


def _words_of_isolation(app_user: str | None, *, isolated: bool) -> str:
    if isolated:
        return f"enforced by the site: an app of {app_user} can't go around this gate"
    if app_user is None:
        return (
            "cooperative: apps run as this user, so they can read the ledger and reach any network"
        )
    return (
        f"cooperative: nobody has found out what an app of {app_user} could do here; run this "
        "command with --check as root, after its SuperNode has started"
    )


def _guarded(policy: Path, options: list[str], app_socket: Path | None) -> Guarded:
    """Return the files and addresses that apps must not reach, by policy and options."""
    from fl_dp.gate.isolation import Guarded, code_of_gate
    from fl_dp.gate.policy import GatePolicy

    gate = GatePolicy.read(policy)
    host, _, port = (_values_of(_SUPERLINK, options) or [""])[-1].rpartition(":")
    superlink = (host.strip("[]"), int(port)) if port.isdigit() else None
    if app_socket is not None:
        app_socket = app_socket.expanduser().absolute()
    keys = [Path(value).absolute() for value in _values_of(_KEY, options)]
    trusted = [Path(value).absolute() for value in _values_of(_TRUSTED, options)]
    return Guarded(
        secrets=(policy, *gate.secret_files, *keys),
        unwritable=(*gate.public_files, *trusted),
        home=Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").absolute(),
        code=code_of_gate(),
        superlink=superlink,
        runtime_socket=app_socket,
        owner=policy.stat().st_uid,
    )


def _print_check(policy: Path, user: AppUser | None, guarded: Guarded) -> None:
    """Try what an app could do, print it, and store the result if this is root."""
    from fl_dp.gate.isolation import is_isolated, tried, write_result
    from fl_dp.terminal.isolation_view import isolation_table

    if user is None:
        raise ValueError("--check tries what the user of apps can do: add --app-user USER")
    attempts = tried(user, guarded)
    out.print(isolation_table(attempts))
    if os.geteuid() == 0:
        write_result(policy, user, guarded, attempts)
    if not is_isolated(attempts):
        fail("an app could go around this gate, which therefore says `cooperative`", status=1)
    tell("An app can't go around this gate.")


def _values_of(option: str, words: list[str]) -> list[str]:
    """Return the values of an option; argparse takes any unambiguous start of its name."""
    values = []
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if len(name) > len("--") and option.startswith(name):
            if not equals:
                value = [*words, ""][index + 1]
            values.append(value)
    return values


def _require_one_way(
    options: list[str],
    *,
    app_user: str | None,
    desk_socket: Path | None,
    check: bool,
    cooperative: bool,
) -> None:
    """Refuse to start apps as the gate's own user, unless the owner says so."""
    if _values_of(_ISOLATION, options):
        raise ValueError(
            "--isolation is Flower's word for how apps run: leave it out, and write --app-user "
            "USER or --cooperative"
        )
    if cooperative and (app_user is not None or desk_socket is not None):
        raise ValueError(
            "--cooperative runs apps as this user, so leave --app-user and --desk-socket out"
        )
    if not cooperative and app_user is None:
        raise ValueError(
            "apps would run as this gate's own user, and could read its ledger: add --app-user "
            "USER and start flower-supernode as that user, or add --cooperative"
        )
    if not (cooperative or check) and desk_socket is None:
        raise ValueError("nothing says where the desk of this gate is: add --desk-socket SOCKET")


def _require_own_packages(options: list[str], policy: Path) -> None:
    """Refuse to install packages for an app whose packages the owner has approved."""
    from fl_dp.gate.policy import GatePolicy, GatePromise

    if GatePolicy.read(policy).keys.promise is GatePromise.RECORD and _values_of(
        _INSTALLS, options
    ):
        raise ValueError(
            "under dp-gate-promise: record the app has the packages of dp-gate-environment: leave "
            f"{_INSTALLS} out"
        )


def _require_no_policy(options: list[str]) -> None:
    """Refuse keys of a policy in `--node-config`, which every app can read."""
    from fl_dp.clients.owner.node_config import PREFIX, means_ours
    from fl_dp.gate.policy import KEYS_OF_DATA

    from .shown_uses import parsed_node_config

    for text in _values_of(_NODE_CONFIG, options):
        config = parsed_node_config(text)
        wrong = sorted(key for key in config if means_ours(key) and key not in KEYS_OF_DATA)
        if wrong:
            raise ValueError(
                f"{wrong[0]} stands in --node-config, which apps see: keys that begin with "
                f"{PREFIX} belong in the file of --policy"
            )
