// Package telemetry wires the OpenTelemetry SDK and its exporters, for programs:
// the library knows the OpenTelemetry API only.
package telemetry
