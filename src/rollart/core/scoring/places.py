"""Where a reward runs, as a job says it: a URL, and how it is called there.

Invariant: what is said here is the caller's business and is not sent: ``platform`` is what is left
for the platform. A URL's query may hold a key, so nothing but ``shown`` is told to anybody.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from rollart.core.scoring.declared import SCHEMES

LOCAL = "local://"

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_USER = re.compile(r"://[^/?#]*@")
_OWN = ("store", "concurrency", "rate", "hedge")
_REGIONAL = ("lambda", "fc")  # the region is half of such a function's name


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPlace:
    """One place of a reward function.

    Attributes:
        platform: the URL that the platform is opened with; it may hold a key of the user's.
        function: its import path here, from the fragment (``lambda://judge#judge:score``) or of
            ``local://``; empty where nothing is known of it here.
        version: that the function there must have, where the URL pins one.
        store: URL of a folder for documents too large to send, of ``file://`` without a host;
            None: they are not sent.
        concurrency: calls under way at most.
        rate_per_s: calls begun a second at most.
        idle_s: seconds without a call after which a local process ends; None: about as long as
            two starts take.
        hedge: send a second request when the first takes longer than 95 % of those before.
    """

    platform: str
    function: str = ""
    version: str = ""
    store: str | None = None
    concurrency: int | None = None
    rate_per_s: float | None = None
    idle_s: float | None = None
    hedge: bool = False

    @property
    def shown(self) -> str:
        """The URL for events, reports and messages; two places may have the same."""
        return shown_url(self.platform)


def shown_url(url: str) -> str:
    """A reward's URL without what may be secret: user, query and fragment.

    The region of a Lambda or Function Compute function stays.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    before, _, query = rest.partition("#")[0].partition("?")
    netloc, slash, path = before.partition("/")
    place = f"{scheme}://{netloc.rpartition('@')[2]}{slash}{path}"
    region = dict(parse_qsl(query)).get("region") if scheme in _REGIONAL else None
    return f"{place}?region={quote(region)}" if region else place


def reward_place(text: str) -> RewardPlace:
    """What a reward's URL says.

    Raises `ValueError` with the rule and a valid URL; the message does not repeat the URL.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in SCHEMES or not rest or re.search(r"\s", text):
        raise ValueError(
            f"must be a URL of {', '.join(f'{one}://' for one in SCHEMES)}; use "
            "local://module:function"
        )
    if scheme == "local":
        return _local(rest)
    if _USER.match(text, len(scheme)):
        raise ValueError(
            "has a user or password in it; take it out, put a token into an environment variable "
            "and name that: ?auth=ROLLART_REWARD_TOKEN"
        )
    parts = urlsplit(text)
    if parts.fragment and not _FUNCTION.fullmatch(parts.fragment):
        raise ValueError(
            "what follows # must be the function's import path, whose version is compared; use "
            f"{scheme}://…#module:function"
        )
    kept = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in _OWN]
    query = urlencode(kept, quote_via=quote, safe=":/,") if kept else ""
    own = _own(parts.query, _OWN)
    return RewardPlace(
        platform=urlunsplit((*parts[:3], query, "")),
        function=parts.fragment,
        version=dict(kept).get("version", ""),
        store=_folder(own.get("store")),
        concurrency=_count(own.get("concurrency")),
        rate_per_s=_above_0("rate", "calls a second", own.get("rate")),
        hedge=_flag("hedge", own.get("hedge")),
    )


def _local(rest: str) -> RewardPlace:
    path, _, query = rest.partition("?")
    own = _own(query, ("concurrency", "idle"))
    unknown = sorted({name for name, _ in parse_qsl(query, keep_blank_values=True)} - set(own))
    if not _FUNCTION.fullmatch(path) or unknown:
        what = f"has no ?{unknown[0]}=" if unknown else "names a function"
        raise ValueError(f"a local:// URL {what}; use local://module:function")
    return RewardPlace(
        platform=f"{LOCAL}{path}",
        function=path,
        concurrency=_count(own.get("concurrency")),
        idle_s=_above_0("idle", "seconds", own.get("idle")),
    )


def _own(query: str, names: tuple[str, ...]) -> Mapping[str, str]:
    """The keys that are the caller's, each of them once."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in names:
            if name in found or not value:
                raise ValueError(f"has ?{name}= twice, or empty; give it once")
            found[name] = value
    return found


def _folder(given: str | None) -> str | None:
    """A store's URL. Its credentials are the environment's: it is told to the function."""
    if given is None:
        return None
    if _USER.search(given) or "?" in given or "#" in given:
        raise ValueError(
            "?store= must be the URL of a folder, with no user, password or query in it; use "
            "store=s3://bucket/folder, and give credentials by the environment"
        )
    if given.lower().startswith("file:") and not given.startswith("file:///"):
        raise ValueError(
            "?store=file:// must be the path of a folder here, with no host in it; use "
            "store=file:///folder, with a share of another machine mounted there"
        )
    return given


def _flag(name: str, given: str | None) -> bool:
    if given not in (None, "0", "1"):
        raise ValueError(f"?{name}= must be 0 or 1; use {name}=1")
    return given == "1"


def _count(given: str | None) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and int(given) > 0):
        raise ValueError("?concurrency= must be a whole number above 0; use concurrency=64")
    return int(given)


def _above_0(name: str, unit: str, given: str | None) -> float | None:
    if given is None:
        return None
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"?{name}= must be {unit} above 0; use {name}=20")
    return number
