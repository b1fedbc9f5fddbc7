"""URLs of functions on platforms, taken apart: pure, and refused where they stand.

Invariant: what is the project's own (`version`, `auth`, `limit`) is never sent; a URL with a
password is refused without being shown.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

from rollart.core.errors import ConfigError
from rollart.core.scoring.declared import SCHEMES
from rollart.core.scoring.places import shown_url

KEYS: Mapping[str, tuple[str, ...]] = {
    "http": ("auth", "limit", "version"),
    "https": ("auth", "limit", "version"),
    "lambda": ("endpoint", "region", "version"),
    "fc": ("account", "endpoint", "qualifier", "region", "version"),
    "serve": ("address", "version"),
    "local": ("version",),
}
"""Query keys that the project reads, by scheme. Those of http that it does not know are sent on."""

_LAMBDA_NAME = re.compile(r"[A-Za-z0-9_-]{1,140}")
_REGION = re.compile(r"[a-z0-9-]+")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")

GOOGLE = "google"
"""Of ``?auth=``: an identity token of Google; anything else there is a variable's name."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_LEAST_SECRET = 4  # characters; hiding what is shorter would hide words that are none


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformUrl:
    """One function's place.

    Attributes:
        scheme: one of `SCHEMES`.
        shown: the URL for messages (see `shown_url`).
        target: of http, the URL to send to; else the function's or application's name.
        host: that calls go to; empty where the SDK or the cluster decides.
        options: the project's query keys.
        secrets: of http, what may be a key of the user's in the query, to be taken out of whatever
            a server says.
    """

    scheme: str
    shown: str
    target: str
    host: str = ""
    qualifier: str | None = None
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def version(self) -> str | None:
        """The version that the function must have; None where the URL pins none."""
        return self.options.get("version")

    @property
    def auth(self) -> str:
        """`GOOGLE`, the variable that holds the bearer token, or nothing: none is sent."""
        return self.options.get("auth", "")

    def in_region(self, region: str) -> "PlatformUrl":
        """A Lambda function's URL with the region that it leaves out."""
        host = self.host if "endpoint" in self.options else _lambda_host(region)
        return replace(self, host=host, options={**self.options, "region": region})


def parse_url(url: str) -> PlatformUrl:
    """Take a platform's URL apart.

    Raises `ConfigError` for an unknown scheme or query key, a missing name, or a password in it.
    """
    parts = _split(url)
    shown = shown_url(url)
    options, rest = _options(parts, shown)
    if parts.scheme in ("http", "https"):
        return _http(parts, shown, options, rest)
    if parts.scheme == "lambda":
        return _lambda(parts, shown, options)
    if parts.scheme == "fc":
        return _fc(parts, shown, options)
    name = parts.netloc + parts.path
    if not name or (parts.scheme == "serve" and not _NAME.fullmatch(name)):
        raise ConfigError(f"{shown}: no application; use serve://application?address=auto")
    address = options.get("address", "auto")
    host = "" if address == "auto" else _host_of(address, shown)
    return PlatformUrl(scheme=parts.scheme, shown=shown, target=name, host=host, options=options)


def _split(url: str) -> SplitResult:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{one}://" for one in SCHEMES)
        shown = f"{scheme}://…" if separator else repr(url)
        raise ConfigError(f"{shown}: no platform has this URL; use one of {known}")
    try:
        parts = urlsplit(url)
        _ = parts.port if scheme in ("http", "https") else None
    except ValueError as error:
        raise ConfigError(f"{scheme}://…: is no URL ({error}); use {scheme}://host/path") from error
    if "@" in parts.netloc:
        raise ConfigError(
            f"{scheme}://…@{parts.netloc.rpartition('@')[2]}: a user or password stands in the "
            "URL; take it out, put a token into an environment variable and name that: "
            "?auth=ROLLART_REWARD_TOKEN"
        )
    return parts


def _options(parts: SplitResult, shown: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The project's own keys, and the others."""
    known = KEYS[parts.scheme]
    options: dict[str, str] = {}
    rest: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            rest.append((name, value))
        elif name in options or not value:
            raise ConfigError(f"{shown}: ?{name}= is given twice or is empty; give it once")
        else:
            options[name] = value
    if rest and parts.scheme not in ("http", "https"):
        wrong = rest[0][0]
        near = get_close_matches(wrong, known, n=1)
        remedy = f"did you mean ?{near[0]}=" if near else f"it has {', '.join(known)}"
        raise ConfigError(f"{shown}: has no query key {wrong!r}; {remedy}")
    return options, rest


def _http(
    parts: SplitResult, shown: str, options: dict[str, str], rest: list[tuple[str, str]]
) -> PlatformUrl:
    if not parts.hostname:
        raise ConfigError(f"{shown}: names no host; use {parts.scheme}://host/path")
    auth = options.get("auth", GOOGLE)
    if auth != GOOGLE and not _VARIABLE.fullmatch(auth):  # it may be the token itself
        raise ConfigError(
            f"{shown}: ?auth= must be google, or name the environment variable that holds the "
            "token, in A-Z, 0-9 and _; use auth=ROLLART_REWARD_TOKEN"
        )
    limit = options.get("limit", "1")
    if not (limit.isascii() and limit.isdigit() and int(limit) > 0):
        raise ConfigError(f"{shown}: ?limit={limit} is no number of bytes; use limit=33554432")
    query = urlencode(rest, quote_via=quote)
    return PlatformUrl(
        scheme=parts.scheme,
        shown=shown,
        target=urlunsplit((parts.scheme, parts.netloc, parts.path or "/", query, "")),
        host=parts.hostname.lower(),
        options=options,
        secrets=tuple(
            {
                one
                for _, value in rest
                for one in (value, quote(value))
                if len(value) >= _LEAST_SECRET
            }
        ),
    )


def _lambda(parts: SplitResult, shown: str, options: dict[str, str]) -> PlatformUrl:
    name, _, qualifier = (parts.netloc + parts.path).partition(":")
    if not _LAMBDA_NAME.fullmatch(name) or (qualifier and not _LAMBDA_NAME.fullmatch(qualifier)):
        raise ConfigError(f"{shown}: no function's name; use lambda://name[:qualifier]?region=…")
    region = options.get("region", "")
    if region and not _REGION.fullmatch(region):
        raise ConfigError(f"{shown}: ?region={region} is no region; use such as eu-west-1")
    host = _lambda_host(region) if region else ""
    if "endpoint" in options:
        host = _host_of(options["endpoint"], shown)
    return PlatformUrl(
        scheme="lambda",
        shown=shown,
        target=name,
        host=host,
        qualifier=qualifier or None,
        options=options,
    )


def _lambda_host(region: str) -> str:
    china = ".cn" if region.startswith("cn-") else ""
    return f"lambda.{region}.amazonaws.com{china}"


def _fc(parts: SplitResult, shown: str, options: dict[str, str]) -> PlatformUrl:
    name = parts.netloc + parts.path
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{shown}: no function's name; use fc://name?region=…&account=…")
    if "endpoint" in options:
        host = _host_of(options["endpoint"], shown)
    else:
        for key in ("region", "account"):
            if not _REGION.fullmatch(options.get(key, "")):
                raise ConfigError(
                    f"{shown}: ?{key}={options.get(key, '')} is missing or malformed; use "
                    "fc://name?region=cn-hangzhou&account=1234567890123456"
                )
        host = f"{options['account']}.{options['region']}.fc.aliyuncs.com"
    return PlatformUrl(
        scheme="fc",
        shown=shown,
        target=name,
        host=host,
        qualifier=options.get("qualifier"),
        options=options,
    )


def _host_of(endpoint: str, shown: str) -> str:
    """The host of ``host:port`` or of a URL without a path."""
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        host = parts.hostname
        _ = parts.port
    except ValueError:
        host = None
    if not host or "@" in endpoint:
        raise ConfigError(
            f"{shown}: an endpoint or address that is none; use such as http://127.0.0.1:9001"
        )
    return host.lower()


def ray_command(application: str, function: str) -> str:
    """What deploys a function (``module:function``) as this application of Ray Serve."""
    return (
        f"serve run rollart.backends.rewards.ray_serve_app:application function={function} "
        f"--name {application} --route-prefix /{application}"
    )
