"""Pages of the dashboard: which address shows what."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import Depends, FastAPI, Request
from fastapi.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from fl_dp import __version__
from fl_dp.app.keys import all_keys
from fl_dp.app.local.auto_hosting import with_engine
from fl_dp.guarantee import grouped
from fl_dp.promise import is_large_delta
from fl_dp.tasks.public_scores import METRICS
from fl_dp.viewer.found_runs import FoundRun, RunCard, RunsFolder, RunState, thinned
from fl_dp.viewer.found_runs.images import images_of, read_image
from fl_dp.viewer.found_runs.untrusted import texts
from fl_dp.viewer.jinja import environment

from .access import SESSION_SECONDS, Door, TooManyGuesses, WrongToken
from .gauges import MOST_FOUND, Gauges
from .guard import LOGIN, Guard, address_of, session_of, too_many
from .languages import LanguageTexts, language_for, languages
from .live import MOST_STREAMS, LiveRuns
from .shown_runs import (
    MOST_COMPARED,
    PAGE,
    SORTS,
    RunFilter,
    advice_for,
    compared_settings,
    planned_and_done,
    promise,
    round_points,
    seconds_left,
    seed_rows,
    sweeps_of,
)
from .start_form import (
    DATA,
    EXPERIMENT,
    KINDS,
    RECOVERY,
    RUN_NAME,
    STATISTIC,
    SWEEP,
    TRAINING,
    Kind,
    WrongField,
    WrongForm,
    experiments,
    field_of,
    folded_groups,
    offered,
    options,
    read_form,
    shown_defaults,
    without_null,
)
from .started_runs import NotPriced, NotStarted, PricedRequest, StartedRuns

_HERE = Path(__file__).parent
_UPLOT = _HERE.parent / "report" / "assets" / "uplot"

# Every file that is served, by the name in its address: no path is ever made of an address.
_STATIC: Mapping[str, Path] = {
    **{file.name: file for file in sorted((_HERE / "static").iterdir()) if file.is_file()},
    "uPlot.iife.min.js": _UPLOT / "uPlot.iife.min.js",
    "uPlot.min.css": _UPLOT / "uPlot.min.css",
}
_LANGUAGE_COOKIE = "fl-dp-language"
_YEAR = 365 * 24 * 3600
_MOST_ROWS = 20  # of a chart's table
_MOST_FIELDS = 500
_MOST_CELLS = 500
_FIRST_OF_PROMISE = ("unit", "adversary", "trusted")  # the rest of a statement is folded away
_ENDED = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED, RunState.BROKEN)


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; the guard has bounded its length."""
    text = (await request.body()).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise HTTPException(400, "a form with too many fields") from None


Form = Annotated[Mapping[str, str], Depends(_form)]
"""The fields of a request's form; what takes one runs in a thread of its own."""


@dataclass(kw_only=True)
class Dashboard:
    """Contents of a dashboard and its access.

    Attributes:
        hosts: `Host` headers that name it, each with its port.
        port: Port in its cookie's name: two dashboards on one machine share their cookies.
        secure: Whether it speaks TLS.
        ledgers: Files or URLs of ledgers to show, besides those among the runs.
        data: Folders of own data by the names that the form offers.
        started: Starts simulations; None: nobody may start any.
        tick: Seconds between two looks at a run that goes on.
    """

    runs: RunsFolder
    door: Door
    hosts: Sequence[str]
    port: int
    secure: bool = False
    ledgers: Sequence[str] = ()
    data: Mapping[str, Path] = field(default_factory=dict)
    started: StartedRuns | None = None
    tick: float = 1.0

    @property
    def cookie(self) -> str:
        """Name of the session's cookie."""
        # The prefix makes browsers refuse a cookie that plain HTTP or another host has set.
        prefix = "__Host-" if self.secure else ""
        return f"{prefix}fl-dp-session-{self.port}"

    def __post_init__(self) -> None:
        """Prepare live runs, gauges and templates."""
        self._live = LiveRuns(runs=self.runs, is_mine=self._is_mine, tick=self.tick)
        self._gauges = Gauges(locations=self.ledgers, root=self.runs.root)
        self._templates = environment(_HERE / "templates")
        self._templates.filters["without_null"] = without_null
        self._templates.tests["large_delta"] = is_large_delta
        self._templates.filters["address"] = lambda name: quote(str(name), safe="/")

    def site(self) -> ASGIApp:
        """The application."""
        return Guard(
            self._routes(),
            door=self.door,
            hosts=self.hosts,
            secure=self.secure,
            cookie=self.cookie,
        )

    @property
    def _strict(self) -> dict[str, Any]:
        return {"httponly": True, "samesite": "strict", "secure": self.secure}

    def _is_mine(self, name: str) -> bool:
        """Whether this dashboard started a run that still runs."""
        return self.started is not None and self.started.is_running(name)

    @property
    def _starter(self) -> StartedRuns:
        assert self.started is not None  # else there is no page that asks
        return self.started

    def _routes(self) -> FastAPI:
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
        app.add_exception_handler(HTTPException, self._failed)
        app.get("/static/{name}")(self._static)
        app.get(LOGIN)(self._login_form)
        app.post(LOGIN)(self._login)
        app.post("/logout")(self._logout)
        app.get("/")(self._runs)
        app.get("/run/{name:path}")(self._run)
        app.get("/points/{name:path}")(self._points)
        app.get("/events/{name:path}")(self._events)
        app.get("/image/{name:path}")(self._image)
        app.get("/sweep/{name:path}")(self._sweep)
        app.get("/compare")(self._compare)
        app.get("/budgets")(self._budgets)
        if self.started is not None:
            app.get("/start")(self._start_form)
            app.get("/defaults")(self._defaults)
            app.post("/price")(self._price)
            app.post("/start")(self._start)
            app.get("/started/{name}")(self._started_run)
            app.post("/stop/{name}")(self._stop)
        return app

    # Who may see it.

    def _login_form(self, request: Request) -> Response:
        return self._page(request, "login.html", problem="", inside=False)

    def _login(self, request: Request, form: Form) -> Response:
        token = form.get("token", "")
        try:
            self.door.check(token, address_of(request))
        except TooManyGuesses as error:
            return too_many(error)
        except WrongToken:
            problem = _words(request)("login.wrong")
            return self._page(request, "login.html", status=401, problem=problem, inside=False)
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(
            self.cookie, self.door.open_session(), max_age=SESSION_SECONDS, **self._strict
        )
        return answer

    def _logout(self, request: Request) -> Response:
        self.door.close_session(session_of(request, self.cookie) or "")
        answer = RedirectResponse(LOGIN, status_code=303)
        answer.delete_cookie(self.cookie, **self._strict)
        return answer

    def _static(self, name: str) -> Response:
        if name not in _STATIC:
            raise HTTPException(404)
        return FileResponse(_STATIC[name], headers={"Cache-Control": "no-cache"})

    # Runs.

    def _runs(self, request: Request) -> Response:
        query = request.query_params
        run_filter = RunFilter(
            words=query.get("q", ""),
            state=query.get("state", ""),
            task=query.get("task", ""),
            sweep=query.get("sweep", ""),
            sort=query.get("sort", "changed"),
        )
        try:
            listing = self.runs.listing()
        except OSError as error:
            return self._message(request, "runs.unreadable", 503, reason=error.strerror)
        matches = run_filter.of(listing.cards)
        last = max(1, -(-len(matches) // PAGE))
        number, page = query.get("page", "1"), 1
        if re.fullmatch(r"[0-9]{1,9}", number):
            page = max(1, min(int(number), last))
        options = [item for item in query.multi_items() if item[0] not in ("page", "lang")]
        neighbours = (page - 1, page + 1)
        return self._page(
            request,
            "runs.html",
            place="runs",
            wanted=run_filter,
            cards=matches[(page - 1) * PAGE : page * PAGE],
            found=len(matches),
            all=len(listing.cards),
            problems=listing.problems[:_MOST_ROWS],
            sweeps=sweeps_of(listing.cards),
            states=[str(state) for state in RunState],
            tasks=sorted({card.settings.get("task.name", "") for card in listing.cards} - {""}),
            sorts=SORTS,
            most=MOST_COMPARED,
            started=self._started_unseen(listing.cards),
            page=page,
            last=last,
            page_links={
                other: "/?" + urlencode([*options, ("page", str(other))]) for other in neighbours
            },
        )

    def _run(self, request: Request, name: str) -> Response:
        with _found_or_404():
            run = self.runs.read(name)
        card, root, mine = run.card, self.runs.root, self._is_mine(name)
        age = None if card.changed is None else time.time() - card.changed
        images = [(name, image) for image in images_of(root, name)]
        if card.sweep:
            images += [(card.sweep, image) for image in images_of(root, card.sweep)]
        return self._page(
            request,
            "run.html",
            run=run,
            card=card,
            left=seconds_left(card),
            advice=advice_for(run, age),
            age=age,
            mine=mine,
            resume=shlex.join(["fl-dp", "run", f"resume={root / name}"]),
            live=mine or card.state in (RunState.RUNNING, RunState.SILENT),
            planned=planned_and_done(run),
            promise=promise(run.statement or {}),
            first_of_promise=_FIRST_OF_PROMISE,
            not_covered=texts((run.statement or {}).get("not_covered")),
            images=images,
            metrics={METRICS[metric].title: value for metric, value in run.metrics.items()},
            rows=round_points(thinned(run.rounds, _MOST_ROWS), run.noise_multipliers),
        )

    def _sweep(self, request: Request, name: str) -> Response:
        with _found_or_404():
            cells = self.runs.sweep(name)
        started = None if self.started is None else self.started.get(name)
        root = self.runs.root
        states = [cell.card.state for cell in cells if cell.card is not None]
        is_running = started is not None and started.runs
        return self._page(
            request,
            "sweep.html",
            name=name,
            cells=cells[:_MOST_CELLS],
            all=len(cells),
            done=sum(state in _ENDED for state in states),
            live=RunState.RUNNING in states or is_running,
            started=started,
            images=images_of(root, name),
            resume=shlex.join(["fl-dp", "run", f"resume={root / name}"]),
        )

    def _points(self, name: str) -> Response:
        with _found_or_404():
            run = self.runs.read(name)
        return JSONResponse({"points": round_points(run.rounds, run.noise_multipliers)})

    def _events(self, request: Request, name: str) -> Response:
        with _found_or_404():
            self.runs.card(name)
        if self._live.streams >= MOST_STREAMS:
            raise HTTPException(503, headers={"Retry-After": "10"})
        last_event_id = request.headers.get("last-event-id", "")
        return StreamingResponse(
            self._live.events(name, last_event_id, _words(request)),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},  # of a proxy that would collect events
        )

    def _image(self, name: str) -> Response:
        run, _, image = name.rpartition("/")
        with _found_or_404():
            png = read_image(self.runs.root, run, image).png
        return Response(png, media_type="image/png")

    def _compare(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_COMPARED]
        runs: list[FoundRun] = []
        missing: list[str] = []
        for name in names:
            try:
                runs.append(self.runs.read(name))
            except (OSError, ValueError):
                missing.append(name)
        rows = seed_rows(runs)
        return self._page(
            request,
            "compare.html",
            runs=runs,
            missing=missing,
            differences=compared_settings(runs),
            rows=rows,
            promises=grouped(rows, lambda row: row.terms),
        )

    def _budgets(self, request: Request) -> Response:
        gauges, more = self._gauges.read()
        by_terms = grouped(gauges, lambda gauge: gauge.promise and gauge.promise.terms)
        gauges = list(chain.from_iterable(by_terms.values()))
        return self._page(
            request, "budgets.html", place="budgets", gauges=gauges, more=more, most=MOST_FOUND
        )

    # Starting and stopping.

    def _start_form(self, request: Request) -> Response:
        return self._form_page(request, {})

    def _defaults(self, request: Request) -> Response:
        """What empty fields mean, beside the chosen options."""
        return JSONResponse(self._empty_fields(request, request.query_params))

    def _price(self, request: Request, form: Form) -> Response:
        kind = _kind(request)
        try:
            work = read_form(form, self.data, kind)
        except WrongForm as error:
            return self._form_page(request, form, wrong=error.fields)
        try:
            price = self._starter.price(work)
        except NotPriced as error:
            field = field_of(error.options, form, kind, own_data=bool(self.data))
            wrong = WrongField(field=field, text=str(error))
            return self._form_page(request, form, wrong=[wrong])
        return self._form_page(request, form, price=price)

    def _start(self, request: Request, form: Form) -> Response:
        try:
            started = self._starter.start(form.get("price", ""))
        except NotStarted as error:
            return self._message(request, str(error), 409)
        return RedirectResponse(f"/started/{quote(started.name)}", status_code=303)

    def _started_run(self, request: Request, name: str) -> Response:
        started = self._starter.get(name)
        if started is None:
            raise HTTPException(404)
        kind = started.request.kind
        is_sweep = kind is SWEEP
        try:
            if is_sweep:
                self.runs.sweep(name)
            else:
                self.runs.card(name)
            # These have no rounds to follow: their output tells how far they are.
            waits = started.runs and kind in (RECOVERY, STATISTIC)
        except (OSError, ValueError):
            waits = True
        if not waits:
            page = "sweep" if is_sweep else "run"
            return RedirectResponse(f"/{page}/{quote(name)}", status_code=303)
        age = time.time() - started.begun
        alone = with_engine(started.request.settings)[0].simulation.engine == "in_process"
        return self._page(request, "started.html", started=started, age=age, alone=alone)

    def _stop(self, request: Request, name: str) -> Response:
        if not self._starter.stop(name):
            return self._message(request, "start.not_mine", 409)
        return RedirectResponse(f"/started/{quote(name)}", status_code=303)

    def _form_page(
        self,
        request: Request,
        form: Mapping[str, str],
        *,
        wrong: Sequence[WrongField] = (),
        price: PricedRequest | None = None,
    ) -> Response:
        own, kind = bool(self.data), _kind(request)
        fields = offered(kind, own_data=own)
        command = [] if price is None else self._starter.command_of(price.request)
        return self._page(
            request,
            "start.html",
            kind=kind,
            kinds=list(KINDS),
            experiment=EXPERIMENT,
            experiments=experiments(kind),
            empty=self._empty_fields(request, form),
            status=422 if wrong else 200,
            place="start",
            form=form,
            wrong={error.field: error.text for error in reversed(wrong)},
            wrong_fields=list(dict.fromkeys(error.field for error in wrong)),
            price=price,
            command=shlex.join(["fl-dp", *command]),
            options=options(kind, own_data=own),
            first=[fields[name] for name in kind.first],
            folded=folded_groups(kind, own_data=own),
            run_name=RUN_NAME,
            data=sorted(self.data) if "task" in kind.groups else [],
            data_field=all_keys()[DATA],
        )

    def _empty_fields(self, request: Request, form: Mapping[str, str]) -> dict[str, str]:
        """The text of each form field while empty."""
        words, kind, own = _words(request), _kind(request), bool(self.data)
        fields = offered(kind, own_data=own)
        shown: dict[str, str] = {}
        for name, value in shown_defaults(form, kind, own_data=own).items():
            key = fields.get(name)
            if key is None:
                shown[name] = words("start.default_is", value=words.option(name, value))
            elif key.choices or key.kind == "true or false":
                shown[name] = words("start.default_is", value=words.value(value))
            else:
                shown[name] = words.value(value)
        return shown

    def _started_unseen(self, cards: Sequence[RunCard]) -> list[Any]:
        """Simulations started here that have no folder yet."""
        if self.started is None:
            return []
        listed = {card.name for card in cards} | {card.sweep for card in cards}
        return [started for started in self.started.all() if started.name not in listed]

    # What every page has.

    def _message(self, request: Request, key: str, status: int, **values: Any) -> Response:
        words = _words(request)
        return self._page(
            request,
            "message.html",
            status=status,
            title=words("message.title"),
            text=words(key, **values),
        )

    def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404 and "text/html" in request.headers.get("accept", ""):
            return self._message(request, "message.not_found", 404)
        text = {404: "there is no such page", 405: "not here"}.get(error.status_code, error.detail)
        return Response(
            f"{text}\n", error.status_code, dict(error.headers or {}), media_type="text/plain"
        )

    def _page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> Response:
        words, may_start = _words(request), self.started is not None
        script_words = {
            key: text for key, text in words.texts.items() if key.startswith(("js.", "state."))
        }
        common = {
            "t": words,
            "language_links": self._language_links(request),
            "inside": True,
            "place": "",
            "version": __version__,
            "may_start": may_start,
            "script_words": script_words,
        }
        text = self._templates.get_template(template).render(**{**common, **values})
        answer = HTMLResponse(text, status_code=status)
        if request.query_params.get("lang") in languages():
            answer.set_cookie(_LANGUAGE_COOKIE, words.code, max_age=_YEAR, **self._strict)
        return answer

    def _language_links(self, request: Request) -> list[tuple[str, str, str]]:
        """Code, name and page address in each language."""
        # Relative to the page: an address of ours made of its path could lead elsewhere.
        path = ""
        if request.method != "GET":
            path = "/" if self.started is None else "/start"
        query = [item for item in request.query_params.multi_items() if item[0] != "lang"]
        links, words = [], _words(request)
        for code in languages():
            address = f"{path}?{urlencode([*query, ('lang', code)])}"
            links.append((code, words(f"language.{code}"), address))
        return links


def _kind(request: Request) -> Kind:
    """The form in an address; without one, that of a training."""
    return KINDS.get(request.query_params.get("kind", ""), TRAINING)


def _words(request: Request) -> LanguageTexts:
    chosen = request.query_params.get("lang") or request.cookies.get(_LANGUAGE_COOKIE)
    return language_for(chosen, request.headers.get("accept-language", ""))


@contextmanager
def _found_or_404() -> Iterator[None]:
    """Answer 404 for a name that leads nowhere."""
    try:
        yield
    except (OSError, ValueError):
        raise HTTPException(404) from None
