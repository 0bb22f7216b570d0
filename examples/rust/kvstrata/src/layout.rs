// SPDX-License-Identifier: Apache-2.0
//! What one model stores.
use crate::error::{c_string, check, get, handle, make};
use crate::{sys, LayoutInfo, Result, StreamInfo};

handle! {
    /// Immutable description of what a model stores.
    Layout, kvstrata_layout, kvstrata_layout_destroy
}

// SAFETY: "immutable, any thread at any time" (c_api.h, section 1).
unsafe impl Sync for Layout {}

/// One stream of rows or of state; the members of `kvstrata_stream`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stream {
    pub kind: i32,
    pub role: i32,
    pub layer: u32,
    pub ratio: u32,
    pub row_bytes: u32,
    pub state_rows: u32,
    pub packing: i32,
    pub flags: u32,
}

#[derive(Clone, Debug, Default)]
pub struct LayoutDesc {
    pub family: String,
    pub block_tokens: u32,
    pub profile: i32,
    pub replay_mode: i32,
    pub replay_window: u32,
    pub replay_layers: u32,
    pub streams: Vec<Stream>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct PresetOptions {
    pub block_tokens: u32,
    pub rows: i32,
    pub index_keys: i32,
    pub include_draft: bool,
}

impl PresetOptions {
    fn to_c(self) -> sys::kvstrata_preset_options {
        sys::kvstrata_preset_options {
            block_tokens: self.block_tokens,
            rows: self.rows,
            index_keys: self.index_keys,
            include_draft: self.include_draft.into(),
            ..Default::default()
        }
    }
}

impl Layout {
    pub fn create(desc: &LayoutDesc) -> Result<Self> {
        let family = c_string(&desc.family, "family")?;
        let streams: Vec<sys::kvstrata_stream> = desc
            .streams
            .iter()
            .map(|one| sys::kvstrata_stream {
                kind: one.kind,
                role: one.role,
                layer: one.layer,
                ratio: one.ratio,
                row_bytes: one.row_bytes,
                state_rows: one.state_rows,
                packing: one.packing,
                flags: one.flags,
                ..Default::default()
            })
            .collect();
        let c = sys::kvstrata_layout_desc {
            block_tokens: desc.block_tokens,
            profile: desc.profile,
            replay_mode: desc.replay_mode,
            replay_window: desc.replay_window,
            replay_layers: desc.replay_layers,
            family: if desc.family.is_empty() { std::ptr::null() } else { family.as_ptr() },
            streams: streams.as_ptr(),
            stream_count: streams.len() as u64,
            ..Default::default()
        };
        // SAFETY: everything that `c` points to lives through the call; so below.
        make(|out, error| unsafe { sys::kvstrata_layout_create(&c, out, error) }).map(Self)
    }
    pub fn preset(name: &str, options: PresetOptions) -> Result<Self> {
        let name = c_string(name, "name")?;
        make(|out, error| unsafe { sys::kvstrata_layout_from_preset(name.as_ptr(), &options.to_c(), out, error) })
            .map(Self)
    }
    /// From the text of a model's Hugging Face config.json.
    pub fn from_config(json: &str, options: PresetOptions) -> Result<Self> {
        make(|out, error| unsafe {
            sys::kvstrata_layout_from_config(json.as_ptr().cast(), json.len() as u64, &options.to_c(), out, error)
        })
        .map(Self)
    }
    /// From the canonical text that [`Layout::text`] gives.
    pub fn from_text(text: &str) -> Result<Self> {
        make(|out, error| unsafe {
            sys::kvstrata_layout_from_text(text.as_ptr().cast(), text.len() as u64, out, error)
        })
        .map(Self)
    }
    pub fn gqa(layers: u32, kv_heads: u32, head_dim: u32, element_bytes: u32, block_tokens: u32) -> Result<Self> {
        make(|out, error| unsafe {
            sys::kvstrata_layout_gqa(layers, kv_heads, head_dim, element_bytes, block_tokens, out, error)
        })
        .map(Self)
    }
    pub fn mla(layers: u32, row_bytes: u32, block_tokens: u32) -> Result<Self> {
        make(|out, error| unsafe { sys::kvstrata_layout_mla(layers, row_bytes, block_tokens, out, error) }).map(Self)
    }
    pub fn opaque(block_tokens: u32) -> Result<Self> {
        make(|out, error| unsafe { sys::kvstrata_layout_opaque(block_tokens, out, error) }).map(Self)
    }

    pub fn info(&self) -> Result<LayoutInfo> {
        get(|out, error| unsafe { sys::kvstrata_layout_get_info(self.raw(), out, error) })
    }
    pub fn stream(&self, index: u32) -> Result<StreamInfo> {
        get(|out, error| unsafe { sys::kvstrata_layout_get_stream(self.raw(), index, out, error) })
    }
    pub fn snapshot_bytes(&self, position: u64) -> Result<u64> {
        get(|out, error| unsafe { sys::kvstrata_layout_snapshot_bytes(self.raw(), position, out, error) })
    }
    pub fn rows_at(&self, index: u32, position: u64) -> Result<u64> {
        get(|out, error| unsafe { sys::kvstrata_layout_rows_at(self.raw(), index, position, out, error) })
    }
    /// The canonical text; equal texts are equal layouts.
    pub fn text(&self) -> Result<String> {
        let mut size = 0;
        // SAFETY: no buffer with no capacity only asks for the size; a failure comes again below.
        unsafe { sys::kvstrata_layout_text(self.raw(), std::ptr::null_mut(), 0, &mut size, std::ptr::null_mut()) };
        let mut bytes = vec![0u8; size as usize];
        check(|error| unsafe {
            sys::kvstrata_layout_text(self.raw(), bytes.as_mut_ptr().cast(), size, &mut size, error)
        })?;
        bytes.pop();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
