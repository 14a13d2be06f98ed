//! What comes from outside, written by an enemy. Every rule of the format is broken once: in bytes that are offered, in
//! what an object says of its children, and in objects that lie in the store already. The answer is an error, in little
//! time, little memory and a small stack.

mod bombs;
mod claims;
mod corpus;
mod json;
mod limits;
mod raw;
mod rules;
mod shapes;
mod stored;
mod streams;
mod valid;
