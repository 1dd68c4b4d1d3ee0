package main

var (
	poison, lifecycle, frozen, registry, environment []scenario
)
