"""The bundle of the page, which `make page` builds of `operator/page`."""
