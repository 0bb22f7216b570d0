// SPDX-License-Identifier: Apache-2.0
//! Finds libkvstrata: in the folder that KVSTRATA_LIB_DIR names, else by pkg-config.
use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=KVSTRATA_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    if let Ok(folder) = env::var("KVSTRATA_LIB_DIR") {
        println!("cargo:rustc-link-search=native={folder}");
    } else {
        let answer = Command::new("pkg-config")
            .args(["--libs-only-L", "kvstrata"])
            .output()
            .expect("KVSTRATA_LIB_DIR is not set, and pkg-config cannot be run");
        assert!(
            answer.status.success(),
            "KVSTRATA_LIB_DIR is not set, and pkg-config does not know kvstrata: {}",
            String::from_utf8_lossy(&answer.stderr)
        );
        let text = String::from_utf8_lossy(&answer.stdout).into_owned();
        for folder in text.split_whitespace().filter_map(|word| word.strip_prefix("-L")) {
            println!("cargo:rustc-link-search=native={folder}");
        }
    }
    println!("cargo:rustc-link-lib=dylib=kvstrata");
}
