# The commands of a fresh Debian 12: each installs what is missing, configures, builds and runs, and may be run again.
# All building is CMake's; this file only strings the steps together.
.PHONY: demo test bench package clean

demo:
	cmake/install-packages.sh build
	cmake --preset release
	cmake --build --preset release --target agent_session
	build/release/examples/agent_session/agent_session

test:
	cmake/install-packages.sh build test
	cmake/test-stages.sh

bench:
	cmake/install-packages.sh build bench
	cmake --preset bench
	cmake --build --preset bench --target kvstrata_run_benchmarks

package:
	cmake/install-packages.sh build package
	cmake --preset package
	cmake --build --preset package

clean:
	rm -rf build
