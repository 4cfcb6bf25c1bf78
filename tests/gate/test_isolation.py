"""What an app could do around a gate: each way is tried as another user, and found where it is."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fl_dp.gate.app_user import AppUser
from fl_dp.gate.isolation import (
    Attempt,
    Guarded,
    code_of_gate,
    found_isolated,
    is_isolated,
    result_file,
    tried,
    write_result,
)

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can try what another user can do")
# Opens a network of its own, becomes the app's user, and says when it has.
APP = """
import ctypes, os, sys
uid, apart, rights = (int(word) for word in sys.argv[1:])
kernel = ctypes.CDLL(None, use_errno=True)
assert kernel.unshare(apart) == 0
if apart & 0x20000:
    assert kernel.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
    for folder in (b"/tmp", b"/var/tmp", b"/dev/shm"):
        if os.path.isdir(folder):
            assert kernel.mount(b"tmpfs", folder, b"tmpfs", 0, None) == 0
if rights == 1:
    kernel.prctl(8, 1)  # PR_SET_KEEPCAPS
if rights != 2:
    kernel.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
os.setgid(uid); os.setuid(uid)
print(flush=True); sys.stdin.read()
"""
NEW_NETWORK = 0x40000000
OWN_PLACES = 0x08020000  # CLONE_NEWIPC | CLONE_NEWNS
NO_RIGHTS, CAPABILITIES, NEW_RIGHTS = range(3)
READ, CHANGE, HOME, CODE, GATE, NETWORK, NEIGHBORS, LEFT, RIGHTS = range(9)
OF_THE_MACHINE = {NEIGHBORS, LEFT}
"""What a process without mounts of its own gets at here, whatever its gate does."""


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder into which every user of the machine may look."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def guarded(place: Path) -> Guarded:
    """Return a gate's files as its owner should keep them."""
    for name in ("private", "flower", "code"):
        (place / name).mkdir(mode=0o700)
    files = [place / "private" / name for name in ("policy.yaml", "ledger.db", "node.key")]
    for file in files:
        file.write_text("secret")
        file.chmod(0o600)
    (place / "trusted.yaml").write_text("public")
    (place / "code" / "module.py").write_text("")
    return Guarded(
        secrets=tuple(files),
        unwritable=(place / "trusted.yaml",),
        home=place / "flower",
        code=(place / "code",),
        superlink=None,
        runtime_socket=None,
        owner=os.geteuid(),
    )


@pytest.fixture
def nobody() -> AppUser:
    return AppUser.named("nobody")


@contextmanager
def app_process(user: AppUser, spaces: int, rights: int = NO_RIGHTS) -> Iterator[None]:
    """Run a process of the app's user in namespaces of its own."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", APP, str(user.uid), str(spaces), str(rights)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip("this system gives no process a network of its own")
        yield


def got_at(attempts: list[Attempt]) -> set[int]:
    return {number for number, attempt in enumerate(attempts) if attempt.successes}


@needs_root
def test_in_a_network_of_its_own_another_user_gets_at_nothing(
    guarded: Guarded, nobody: AppUser
) -> None:
    with app_process(nobody, NEW_NETWORK):
        attempts = tried(nobody, guarded)
    # Sockets of this machine's services are not the test's.
    assert got_at(attempts) <= OF_THE_MACHINE


@needs_root
def test_texts_and_memory_that_apps_share_are_found(guarded: Guarded, nobody: AppUser) -> None:
    with app_process(nobody, NEW_NETWORK):
        [*_, shared, _] = tried(nobody, guarded)
    with app_process(nobody, NEW_NETWORK | OWN_PLACES):
        [*_, apart, _] = tried(nobody, guarded)
    assert shared.goal == apart.goal == "read what apps of another site left"
    assert {"/tmp", "/var/tmp", "shared memory of System V"} <= set(shared.successes)
    assert apart.successes == ()


def opened(name: str, mode: int) -> Callable[[Path], None]:
    return lambda place: (place / name).chmod(mode)


def owned(name: str) -> Callable[[Path], None]:
    return lambda place: os.chown(place / name, AppUser.named("nobody").uid, -1)


@needs_root
@pytest.mark.parametrize(
    ("open_up", "ways"),
    [
        ([opened("private", 0o711), opened("private/ledger.db", 0o604)], {READ}),
        ([opened("private", 0o711), opened("private/policy.yaml", 0o602)], {CHANGE}),
        ([opened("private", 0o703)], {CHANGE}),
        ([opened("trusted.yaml", 0o646)], {CHANGE}),
        ([owned("trusted.yaml")], {CHANGE}),
        ([opened("", 0o757)], {CHANGE, HOME, CODE}),
        ([opened("", 0o1757)], {CHANGE, HOME, CODE}),
        ([opened("flower", 0o703)], {HOME}),
        ([opened("code", 0o755), opened("code/module.py", 0o646)], {CODE}),
        ([opened("code", 0o755), owned("code/module.py")], {CODE}),
    ],
)
def test_each_way_that_is_open_is_found(
    guarded: Guarded,
    nobody: AppUser,
    place: Path,
    open_up: list[Callable[[Path], None]],
    ways: set[int],
) -> None:
    for change in open_up:
        change(place)
    with app_process(nobody, NEW_NETWORK):
        attempts = tried(nobody, guarded)
    assert got_at(attempts) - OF_THE_MACHINE == ways
    assert not is_isolated(attempts)


@needs_root
@pytest.mark.parametrize(
    ("rights", "way"), [(CAPABILITIES, "capabilities of "), (NEW_RIGHTS, "programs like sudo, in ")]
)
def test_rights_beyond_those_of_the_user_are_found(
    guarded: Guarded, nobody: AppUser, rights: int, way: str
) -> None:
    with app_process(nobody, NEW_NETWORK), app_process(nobody, NEW_NETWORK, rights):
        attempts = tried(nobody, guarded)
    assert got_at(attempts) - OF_THE_MACHINE == {RIGHTS}
    [found] = attempts[RIGHTS].successes
    assert found.startswith(way)


@needs_root
def test_a_gate_of_the_app_s_own_user_is_signalled(guarded: Guarded, nobody: AppUser) -> None:
    with app_process(nobody, NEW_NETWORK):
        attempts = tried(nobody, replace(guarded, owner=nobody.uid))
    assert GATE in got_at(attempts)


@needs_root
def test_the_superlink_is_found_where_it_can_be_reached(guarded: Guarded, nobody: AppUser) -> None:
    with socket.create_server(("127.0.0.1", 0)) as superlink:
        place = "127.0.0.1", superlink.getsockname()[1]
        near = tried(nobody, replace(guarded, superlink=place))
        with app_process(nobody, NEW_NETWORK):
            apart = tried(nobody, replace(guarded, superlink=place))
    assert "the SuperLink at 127.0.0.1" in near[NETWORK].successes
    assert apart[NETWORK].successes == ()


@needs_root
def test_a_process_with_a_network_is_found_beside_one_without(
    guarded: Guarded, nobody: AppUser
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as superlink,
        app_process(nobody, NEW_NETWORK),
        app_process(nobody, 0),
    ):
        place = "127.0.0.1", superlink.getsockname()[1]
        attempts = tried(nobody, replace(guarded, superlink=place))
    assert NETWORK in got_at(attempts)


@needs_root
def test_a_socket_of_another_process_is_found_and_that_of_the_runtime_is_none(
    guarded: Guarded, nobody: AppUser, place: Path
) -> None:
    (place / "runtime").mkdir(mode=0o755)
    names = place / "other", place / "runtime" / "runtime.sock"
    servers = []
    for name in names:
        servers.append(socket.socket(socket.AF_UNIX))
        servers[-1].bind(str(name))
        servers[-1].listen()
        name.chmod(0o666)
    with app_process(nobody, NEW_NETWORK):
        attempts = tried(nobody, replace(guarded, runtime_socket=names[1]))
        # The app could put a link in the socket's place, and have the gate open its own files.
        names[1].parent.chmod(0o757)
        later = tried(nobody, replace(guarded, runtime_socket=names[1]))
    for server in servers:
        server.close()
    assert str(names[0]) in attempts[NEIGHBORS].successes
    assert str(names[1]) not in attempts[NEIGHBORS].successes
    assert got_at(attempts) == OF_THE_MACHINE
    assert got_at(later) == {CHANGE} | OF_THE_MACHINE


@pytest.mark.skipif(IS_ROOT, reason="root can become another user")
def test_as_the_gate_s_own_user_an_app_gets_at_all_files(guarded: Guarded) -> None:
    own = AppUser.named(pwd.getpwuid(os.getuid()).pw_name)
    assert got_at(tried(own, guarded)) >= {READ, CHANGE, HOME, CODE, GATE}
    with pytest.raises(PermissionError, match="sudo"):
        tried(AppUser.named("nobody"), guarded)


@pytest.mark.parametrize(
    ("name", "said"), [("no-such-user", "has no user"), ("root", "run as root"), ("0", "as root")]
)
def test_a_user_that_keeps_nothing_apart_is_an_error(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AppUser.named(name)


def test_the_code_of_a_gate_is_where_python_looks_for_it() -> None:
    package = Path(found_isolated.__code__.co_filename).parents[1]
    assert {package, Path(sys.executable)} <= set(code_of_gate())


# What root leaves for a gate.

NONE = [Attempt("read", ())]
SOME = [Attempt("read", ("/ledger.db",))]


@needs_root
def test_a_gate_finds_what_root_has_found(guarded: Guarded, nobody: AppUser) -> None:
    policy = guarded.secrets[0]
    assert not found_isolated(policy, nobody, guarded)
    write_result(policy, nobody, guarded, NONE)
    assert found_isolated(policy, nobody, guarded)
    others = [
        (policy.with_name("other.yaml"), nobody, guarded),
        (policy, nobody._replace(uid=4711), guarded),
        (policy, nobody, replace(guarded, home=Path("/elsewhere"))),
        (policy, nobody, replace(guarded, runtime_socket=Path("/run/other.sock"))),
        (policy, nobody, replace(guarded, secrets=guarded.secrets[1:])),
        (policy, nobody, replace(guarded, superlink=("192.0.2.9", 8000))),
    ]
    assert not any(found_isolated(*other) for other in others)
    write_result(policy, nobody, guarded, SOME)
    assert not found_isolated(policy, nobody, guarded)


@needs_root
def test_what_somebody_else_could_have_written_is_not_believed(
    guarded: Guarded, nobody: AppUser, place: Path
) -> None:
    policy = guarded.secrets[0]
    write_result(policy, nobody, guarded, NONE)
    file = result_file(policy)
    for mode in (0o646, 0o664):
        file.chmod(mode)
        assert not found_isolated(policy, nobody, guarded)
    file.chmod(0o644)
    os.chown(file, nobody.uid, -1)
    assert not found_isolated(policy, nobody, guarded)
    os.chown(file, 0, -1)
    assert found_isolated(policy, nobody, guarded)
    file.rename(place / "moved")
    file.symlink_to(place / "moved")
    assert not found_isolated(policy, nobody, guarded)


@needs_root
@pytest.mark.parametrize("change", [{"boot": "an earlier one"}, {"isolated": "yes"}, {"more": 1}])
def test_a_result_of_another_time_or_form_is_not_believed(
    guarded: Guarded, nobody: AppUser, change: dict[str, object]
) -> None:
    policy = guarded.secrets[0]
    write_result(policy, nobody, guarded, NONE)
    file = result_file(policy)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert not found_isolated(policy, nobody, guarded)


@needs_root
@pytest.mark.parametrize("text", ["", "[]", "4711", "{}", "\xff"])
def test_a_result_that_can_t_be_read_is_not_believed(
    guarded: Guarded, nobody: AppUser, text: str
) -> None:
    result_file(guarded.secrets[0]).write_text(text, encoding="latin-1")
    assert not found_isolated(guarded.secrets[0], nobody, guarded)
