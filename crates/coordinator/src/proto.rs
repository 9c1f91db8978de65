//! The generated types of `proto/sumpter.proto`.
#![allow(missing_docs, clippy::all, clippy::pedantic)]

tonic::include_proto!("sumpter.v1");
