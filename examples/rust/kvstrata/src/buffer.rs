// SPDX-License-Identifier: Apache-2.0
//! Where an engine's rows live: memory that is owned, and the map from rows to addresses in it.
//!
//! I1. While a descriptor is with the library the buffer is owned by the handle that gave it there.
use std::ops::Range;

use crate::sys;

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub bytes: u32,
    pub offset: u64,
    pub stride: u64,
}

/// The forms of `kvstrata_buffer` (c_api.h, section 6).
#[derive(Clone, Debug)]
pub enum Form {
    Linear { first_row: u64, row_stride: u64 },
    Ring { first_row: u64, capacity_rows: u64 },
    Pages { rows_per_page: u32, page_stride: u64, first_page: u64, page_ids: Vec<i64> },
    Slots { first_row: u64, slots: Vec<i64> },
}

/// One stream's rows in memory of its own.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub stream: u32,
    pub memory: Vec<u8>,
    /// The part of `memory` that the rows may be in.
    pub range: Range<usize>,
    pub form: Form,
    pub columns: Vec<Column>,
}

/// A descriptor with the arrays that it points to.
pub(crate) struct Described {
    pub c: sys::kvstrata_buffer,
    _columns: Vec<sys::kvstrata_column>,
}

impl Buffer {
    /// Rows one after the other, from the beginning of `memory` on.
    pub fn linear(stream: u32, memory: Vec<u8>) -> Self {
        let range = 0..memory.len();
        Buffer { stream, memory, range, form: Form::Linear { first_row: 0, row_stride: 0 }, columns: Vec::new() }
    }

    /// The descriptor borrows from this buffer's heap, which does not move with the buffer.
    pub(crate) fn describe(&mut self) -> Described {
        let columns: Vec<sys::kvstrata_column> = self
            .columns
            .iter()
            .map(|one| sys::kvstrata_column {
                bytes: one.bytes,
                offset: one.offset,
                stride: one.stride,
                ..Default::default()
            })
            .collect();
        let used = &mut self.memory[self.range.clone()];
        let mut c = sys::kvstrata_buffer {
            stream: self.stream,
            base: used.as_mut_ptr().cast(),
            size_bytes: used.len() as u64,
            columns: if columns.is_empty() { std::ptr::null() } else { columns.as_ptr() },
            column_count: columns.len() as u64,
            ..Default::default()
        };
        match &self.form {
            Form::Linear { first_row, row_stride } => {
                c.form = sys::KVSTRATA_FORM_LINEAR;
                c.first_row = *first_row;
                c.row_stride = *row_stride;
            }
            Form::Ring { first_row, capacity_rows } => {
                c.form = sys::KVSTRATA_FORM_RING;
                c.first_row = *first_row;
                c.capacity_rows = *capacity_rows;
            }
            Form::Pages { rows_per_page, page_stride, first_page, page_ids } => {
                c.form = sys::KVSTRATA_FORM_PAGES;
                c.rows_per_page = *rows_per_page;
                c.page_stride = *page_stride;
                c.first_page = *first_page;
                set_ids(&mut c, page_ids);
            }
            Form::Slots { first_row, slots } => {
                c.form = sys::KVSTRATA_FORM_SLOTS;
                c.first_row = *first_row;
                set_ids(&mut c, slots);
            }
        }
        Described { c, _columns: columns }
    }
}

fn set_ids(c: &mut sys::kvstrata_buffer, ids: &[i64]) {
    c.page_ids = ids.as_ptr().cast();
    c.page_count = ids.len() as u64;
    c.page_id_bytes = 8;
}
