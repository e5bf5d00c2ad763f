//! Tile instructions on a processor that has none: each raises SIGILL, and a handler carries it out.
//!
//! Written after Intel's manual (volume 2, the pages of LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TILERELEASE and TDPBF16PS)
//! and strict where the program could go wrong: what it may not do with tiles ends the process, as any other illegal instruction.
#![allow(
    unsafe_code,
    reason = "a signal handler reads and writes what the interrupted code names"
)]

use std::cell::UnsafeCell;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a row, and rows of a tile, at most.
const ROW_BYTES: usize = 64;
const MAX_ROWS: usize = 16;

/// Products that have been emulated in this process.
pub(super) static PRODUCTS: AtomicU64 = AtomicU64::new(0);

/// One thread's tiles.
struct State {
    /// Rows and bytes of a row of each tile, once configured.
    shapes: Option<[(usize, usize); 8]>,
    tiles: [[[u8; ROW_BYTES]; MAX_ROWS]; 8],
}

impl State {
    /// Returns the rows of a tile and their bytes; none where it has none.
    fn shape(&self, tile: usize) -> Option<(usize, usize)> {
        let (rows, bytes) = self.shapes?[tile];
        (rows > 0 && bytes.is_multiple_of(4)).then_some((rows, bytes))
    }
}

thread_local! {
    static STATE: UnsafeCell<State> = const {
        UnsafeCell::new(State { shapes: None, tiles: [[[0; ROW_BYTES]; MAX_ROWS]; 8] })
    };
}

/// From here on illegal instructions that are tile instructions work.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the action is whole, and its handler touches the state of its thread and what an instruction names.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction =
                on_illegal_instruction as extern "C" fn(_, _, _) as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut())
        };
        assert_eq!(result, 0, "a handler for SIGILL");
    });
}

extern "C" fn on_illegal_instruction(
    _: libc::c_int,
    _: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the system passes the context of the interrupted thread, which is this one; nothing else borrows its tiles.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        let registers = &mut context.uc_mcontext.gregs;
        let code = registers[libc::REG_RIP as usize] as *const u8;
        let done = STATE.with(|state| {
            let instruction = Instruction::decode(code, registers)?;
            instruction.run(&mut *state.get())?;
            Some(instruction.length)
        });
        match done {
            Some(length) => registers[libc::REG_RIP as usize] += length,
            // the instruction is run again, and ends the process
            None => {
                libc::signal(libc::SIGILL, libc::SIG_DFL);
            }
        }
    }
}

/// A tile instruction, its memory operand resolved.
struct Instruction {
    kind: Kind,
    length: i64,
}

enum Kind {
    Configure {
        from: *const u8,
    },
    Release,
    Zero {
        tile: usize,
    },
    Load {
        tile: usize,
        from: Rows,
    },
    Store {
        tile: usize,
        to: Rows,
    },
    Product {
        sums: usize,
        left: usize,
        right: usize,
    },
}

/// Rows in memory.
#[derive(Clone, Copy)]
struct Rows {
    start: *mut u8,
    stride: isize,
}

impl Instruction {
    /// Reads a three-byte VEX instruction of the map 0F38.
    ///
    /// # Safety
    /// `code` is an instruction.
    unsafe fn decode(code: *const u8, registers: &[i64]) -> Option<Self> {
        // SAFETY: every byte that is read belongs to the instruction, as the ones before it say.
        let byte = |index: usize| unsafe { code.add(index).read() };
        if byte(0) != 0xc4 || byte(1) & 0x1f != 2 {
            return None;
        }
        let inverted = |bit: u8| usize::from(byte(1) >> bit & 1 == 0) << 3;
        let (high_register, high_index, high_base) = (inverted(7), inverted(6), inverted(5));
        let (is_w0_l0, prefix) = (byte(2) & 0x84 == 0, byte(2) & 3);
        let third = usize::from(!byte(2) >> 3 & 15);
        let (opcode, modrm) = (byte(3), byte(4));
        let (mode, register) = (modrm >> 6, usize::from(modrm >> 3 & 7) | high_register);
        let other = usize::from(modrm & 7) | high_base;
        if !is_w0_l0 {
            return None;
        }
        let tile = |number: usize| (number < 8).then_some(number);
        let at = |kind, length| Some(Self { kind, length });
        if mode == 3 {
            return match (opcode, prefix) {
                (0x49, 0) if modrm == 0xc0 && third == 0 => at(Kind::Release, 5),
                (0x49, 3) if modrm & 7 == 0 && third == 0 => at(
                    Kind::Zero {
                        tile: tile(register)?,
                    },
                    5,
                ),
                (0x5c, 2) => {
                    let [sums, left, right] = [tile(register)?, tile(other)?, tile(third)?];
                    let distinct = sums != left && sums != right && left != right;
                    distinct.then_some(())?;
                    at(Kind::Product { sums, left, right }, 5)
                }
                _ => None,
            };
        }
        // what every register holds, in the order of their numbers
        let value = |number: usize| {
            const ORDER: [libc::c_int; 16] = [
                libc::REG_RAX,
                libc::REG_RCX,
                libc::REG_RDX,
                libc::REG_RBX,
                libc::REG_RSP,
                libc::REG_RBP,
                libc::REG_RSI,
                libc::REG_RDI,
                libc::REG_R8,
                libc::REG_R9,
                libc::REG_R10,
                libc::REG_R11,
                libc::REG_R12,
                libc::REG_R13,
                libc::REG_R14,
                libc::REG_R15,
            ];
            registers[ORDER[number] as usize]
        };
        let has_sib = modrm & 7 == 4;
        let displaced = if has_sib { 6 } else { 5 };
        let (displacement, length) = match mode {
            0 => (0, displaced),
            1 => (i64::from(byte(displaced) as i8), displaced + 1),
            _ => {
                let bytes = std::array::from_fn(|index| byte(displaced + index));
                (i64::from(i32::from_le_bytes(bytes)), displaced + 4)
            }
        };
        let base = if has_sib {
            usize::from(byte(5) & 7) | high_base
        } else {
            other
        };
        // neither an address relative to the instruction nor one without a base is used here
        if mode == 0 && base & 7 == 5 {
            return None;
        }
        let start = (value(base) + displacement) as *mut u8;
        let length = length as i64;
        if opcode == 0x49 && prefix == 0 && register == 0 && third == 0 {
            return at(Kind::Configure { from: start }, length);
        }
        if opcode != 0x4b || !has_sib || third != 0 {
            return None;
        }
        let index = usize::from(byte(5) >> 3 & 7) | high_index;
        let stride = if index == 4 {
            0
        } else {
            value(index) << (byte(5) >> 6)
        };
        let rows = Rows {
            start,
            stride: stride as isize,
        };
        match prefix {
            3 => at(
                Kind::Load {
                    tile: tile(register)?,
                    from: rows,
                },
                length,
            ),
            2 => at(
                Kind::Store {
                    tile: tile(register)?,
                    to: rows,
                },
                length,
            ),
            _ => None,
        }
    }

    /// Returns nothing where the processor would raise an exception.
    ///
    /// # Safety
    /// The memory that the instruction names may be read or written by its thread.
    unsafe fn run(&self, state: &mut State) -> Option<()> {
        match self.kind {
            Kind::Configure { from } => {
                // SAFETY: the operand is 64 bytes.
                let config = unsafe { from.cast::<[u8; 64]>().read_unaligned() };
                state.shapes = Some(shapes(&config)?);
                state.tiles = [[[0; ROW_BYTES]; MAX_ROWS]; 8];
            }
            Kind::Release => {
                state.shapes = None;
                state.tiles = [[[0; ROW_BYTES]; MAX_ROWS]; 8];
            }
            Kind::Zero { tile } => {
                state.shape(tile)?;
                state.tiles[tile] = [[0; ROW_BYTES]; MAX_ROWS];
            }
            Kind::Load { tile, from } => {
                let (rows, bytes) = state.shape(tile)?;
                state.tiles[tile] = [[0; ROW_BYTES]; MAX_ROWS];
                for (row, to) in state.tiles[tile][..rows].iter_mut().enumerate() {
                    // SAFETY: by contract.
                    unsafe {
                        let from = from.start.offset(row as isize * from.stride);
                        std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes);
                    }
                }
            }
            Kind::Store { tile, to } => {
                let (rows, bytes) = state.shape(tile)?;
                for (row, from) in state.tiles[tile][..rows].iter().enumerate() {
                    // SAFETY: by contract.
                    unsafe {
                        let to = to.start.offset(row as isize * to.stride);
                        std::ptr::copy_nonoverlapping(from.as_ptr(), to, bytes);
                    }
                }
            }
            Kind::Product { sums, left, right } => {
                let shapes = state.shapes?;
                let (rows, row_bytes) = shapes[sums];
                let fits = shapes[left] == (rows, 4 * shapes[right].0)
                    && shapes[right].1 == row_bytes
                    && row_bytes.is_multiple_of(4);
                fits.then_some(())?;
                let weights = state.tiles[right];
                let numbers = state.tiles[left];
                for (sums, numbers) in state.tiles[sums][..rows].iter_mut().zip(&numbers) {
                    add_products(sums, numbers, &weights[..shapes[right].0]);
                }
                PRODUCTS.fetch_add(1, Ordering::Relaxed);
            }
        }
        Some(())
    }
}

/// Reads a configuration of palette 1.
fn shapes(config: &[u8; 64]) -> Option<[(usize, usize); 8]> {
    let spare = config[2..16]
        .iter()
        .chain(&config[32..48])
        .chain(&config[56..]);
    let shapes = std::array::from_fn(|tile| {
        let bytes = u16::from_le_bytes([config[16 + 2 * tile], config[17 + 2 * tile]]);
        (usize::from(config[48 + tile]), usize::from(bytes))
    });
    let is_valid = |&(rows, bytes): &(usize, usize)| {
        rows <= MAX_ROWS && bytes <= ROW_BYTES && (rows == 0) == (bytes == 0)
    };
    let valid = config[0] == 1
        && config[1] == 0
        && spare.copied().all(|byte| byte == 0)
        && shapes.iter().all(is_valid);
    valid.then_some(shapes)
}

/// TDPBF16PS for one row: products of even and of odd inputs are summed apart, in order, and their sums together added.
fn add_products(sums: &mut [u8; ROW_BYTES], left: &[u8; ROW_BYTES], right: &[[u8; ROW_BYTES]]) {
    let number = |bytes: &[u8]| {
        flushed(f32::from_bits(
            u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16,
        ))
    };
    let mut even = [0f32; 16];
    let mut odd = [0f32; 16];
    for (pair, weights) in left.chunks_exact(4).zip(right) {
        let (first, second) = (number(&pair[..2]), number(&pair[2..]));
        for (column, pair) in weights.chunks_exact(4).enumerate() {
            even[column] = flushed(first.mul_add(number(&pair[..2]), even[column]));
            odd[column] = flushed(second.mul_add(number(&pair[2..]), odd[column]));
        }
    }
    for (column, sum) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let before = flushed(f32::from_le_bytes(*sum));
        let total = flushed(before + flushed(even[column] + odd[column]));
        *sum = total.to_le_bytes();
    }
}

/// Subnormal numbers are zeros, as operands and as results.
fn flushed(number: f32) -> f32 {
    if number.is_subnormal() {
        0f32.copysign(number)
    } else {
        number
    }
}
