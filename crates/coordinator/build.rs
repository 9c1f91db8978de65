//! Generates the control protocol's types from `proto/sumpter.proto`, without a `protoc` binary.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/sumpter.proto");
    let descriptors = protox::compile(["sumpter.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .bytes(".sumpter.v1.CoordinatorMessage.shared")
        .bytes(".sumpter.v1.CoordinatorMessage.compressed")
        .bytes(".sumpter.v1.CoordinatorMessage.piece")
        .bytes(".sumpter.v1.WorkerProgress.payload")
        .type_attribute(".sumpter.v1.DrainReport", SERIALIZE)
        .type_attribute(".sumpter.v1.ServerName", SERIALIZE)
        .type_attribute(".sumpter.v1.TuneReport", SERIALIZE)
        .compile_fds(descriptors)?;
    Ok(())
}

/// Reports are printed as JSON.
const SERIALIZE: &str = "#[derive(serde::Serialize)]";
