// SPDX-License-Identifier: Apache-2.0
//! kvstrata for Rust: keeps an LLM's computed prompt prefixes and gives them back exactly.
//!
//! Names and promises are those of `include/kvstrata/c_api.h`. Every handle is owned and destroyed with its value; a
//! failure is an [`Error`]. The thread sentences of the header are types here: [`Layout`], [`Cache`], [`Namespace`] and
//! [`Pin`] are `Sync`; [`Match`] and [`Writer`] only `Send`; of a [`Plan`] what may be called from any thread takes
//! `&self`, the rest `&mut self`.
//!
//! Memory that the library reads or writes is owned by the handle meanwhile, so that safe code can neither free it nor
//! look at it too early, even where a value is leaked. What an engine keeps elsewhere goes through the `unsafe` functions
//! named `*_raw`.
#![deny(unsafe_op_in_unsafe_fn)]

mod buffer;
mod cache;
mod error;
mod layout;
mod plan;
mod storage;
mod writer;

pub use buffer::{Buffer, Column, Form};
pub use cache::{
    agree, Cache, CacheOptions, ExtraKey, LookupOptions, Match, Namespace, NamespaceOptions, Pin, PinRange,
};
pub use error::{status_name, Error, Result};
pub use kvstrata_sys as sys;
pub use layout::{Layout, LayoutDesc, PresetOptions, Stream};
pub use plan::{Plan, PlanOptions};
pub use storage::{Entry, Key, Request, Storage};
pub use sys::{
    kvstrata_close_info as CloseInfo, kvstrata_commit_info as CommitInfo, kvstrata_event as Event,
    kvstrata_layout_info as LayoutInfo, kvstrata_match_info as MatchInfo, kvstrata_namespace_info as NamespaceInfo,
    kvstrata_pin_info as PinInfo, kvstrata_plan_result as PlanResult, kvstrata_plan_segment as Segment,
    kvstrata_stats as Stats, kvstrata_stream as StreamInfo, kvstrata_verify_info as VerifyInfo,
};
pub use writer::{Writer, WriterOptions};

/// The SONAME number of the library that is loaded.
pub fn abi_version() -> u32 {
    // SAFETY: takes nothing, any thread.
    unsafe { sys::kvstrata_abi_version() }
}

/// The newest on-disk format that the library can write.
pub fn format_version() -> u32 {
    // SAFETY: takes nothing, any thread.
    unsafe { sys::kvstrata_format_version() }
}
