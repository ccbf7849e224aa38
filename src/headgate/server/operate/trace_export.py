"""Where the server's spans go: what the standard OTEL_* variables say, when the OpenTelemetry SDK is installed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from ... import tracing

log = logging.getLogger("headgate.server")

ASKED_BY = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
HINT = "pip install 'headgate[otel]' opentelemetry-sdk opentelemetry-exporter-otlp"


def export_traces(environment: Mapping[str, str] = os.environ) -> Callable[[], None]:
    """Sends spans to where the environment says; what is returned sends the last ones. Never a reason not to start."""
    if not wanted(environment) or tracing.is_on():  # the application around us has set it up
        return lambda: None
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as missing:
        log.warning("spans are not exported: %s is not installed; %s", missing.name, HINT)
        return lambda: None
    is_named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if is_named else {"service.name": "headgate"}))
    for name in exporters(environment):
        try:
            provider.add_span_processor(BatchSpanProcessor(_load(name)()))
        except Exception as error:
            log.warning("spans are not exported to %s: %s; %s", name, error, HINT)
    trace.set_tracer_provider(provider)
    return provider.shutdown


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether somebody asks for spans."""
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_off and bool(exporters(environment)) and any(environment.get(name) for name in ASKED_BY)


def exporters(environment: Mapping[str, str]) -> list[str]:
    """The exporters' names, as packages register them."""
    found = []
    for name in (environment.get("OTEL_TRACES_EXPORTER") or "otlp").split(","):
        if (name := name.strip()) == "otlp":
            protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(
                "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
            )
            name = PROTOCOLS.get(protocol, protocol)
        if name not in ("", "none"):
            found.append(name)
    return found


def _load(name: str) -> Any:
    for entry in entry_points(group="opentelemetry_traces_exporter", name=name):
        return entry.load()
    raise LookupError("no package has an exporter of this name")
