//! Sorting of window hashes, which are spread evenly over the numbers below 2^61 unless somebody chose the words.
//!
//! Numbers are put into buckets by their upper bits, more buckets than numbers, and what is left to do is to exchange
//! neighbours here and there. Words that repeat, or that were chosen so that hashes share their upper bits, make large
//! buckets. Those are sorted by comparisons, so that no words cost more than a sort by comparisons does.

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

/// Numbers that are put into buckets at a time: with their copy and the buckets they stay in a core's second-level cache.
const PART_NUMBERS: usize = 32 * 1024;

/// A bucket of so many numbers is sorted by insertion, which is quadratic.
const SMALL_BUCKET: usize = 24;

/// Sorts numbers between the first one, which is the lowest, and the last one, the highest; drops all repetitions.
///
/// The numbers between are below `2^bits`. What was in `spare` is lost.
pub(super) fn sort_between(numbers: &mut Vec<u64>, spare: &mut Vec<u64>, bits: u32) {
    spare.resize(numbers.len(), 0);
    let ([lowest, inside @ .., highest], [_, spare_inside @ .., _]) = (numbers.as_mut_slice(), spare.as_mut_slice())
    else {
        return;
    };
    let (lowest, highest) = (*lowest, *highest);
    let kept = if inside.len() <= PART_NUMBERS {
        let kept = sort_part(inside, spare_inside, bits);
        std::mem::swap(numbers, spare);
        kept
    } else {
        sort_in_parts(inside, spare_inside, bits)
    };
    numbers[0] = lowest;
    numbers[kept + 1] = highest;
    numbers.truncate(kept + 2);
}

/// Sorts many numbers in place and gives how many there are without repetitions; what is in `spare`, which is as long, is
/// lost.
fn sort_in_parts(numbers: &mut [u64], spare: &mut [u64], bits: u32) -> usize {
    if u32::try_from(numbers.len()).is_err() {
        numbers.par_sort_unstable();
        return drop_repeats(numbers);
    }
    let part_bits = (numbers.len() / PART_NUMBERS).ilog2() + 2;
    let ends = put_into_buckets(numbers, spare, bits, part_bits);
    let (mut to, mut from, mut start) = (&mut *numbers, &mut *spare, 0);
    let mut parts = Vec::with_capacity(ends.len());
    for end in ends {
        let (part, spare_part);
        (part, to) = to.split_at_mut((end - start) as usize);
        (spare_part, from) = from.split_at_mut((end - start) as usize);
        parts.push((spare_part, part));
        start = end;
    }
    let lengths: Vec<(usize, usize)> = parts
        .into_par_iter()
        .with_max_len(1)
        .map(|(from, to)| (to.len(), sort_part(from, to, bits - part_bits)))
        .collect();
    let (mut start, mut kept) = (0, 0);
    for (length, kept_of_part) in lengths {
        numbers.copy_within(start..start + kept_of_part, kept);
        start += length;
        kept += kept_of_part;
    }
    kept
}

/// Writes the numbers, which are alike above their lower `bits`, in order and without repetitions to the start of
/// `sorted`, which is as long, and gives how many there are.
fn sort_part(numbers: &mut [u64], sorted: &mut [u64], bits: u32) -> usize {
    // Padding and empty parts of images give runs of equal windows.
    let kept = drop_repeats(numbers);
    let (numbers, sorted) = (&numbers[..kept], &mut sorted[..kept]);
    if numbers.len() <= SMALL_BUCKET || numbers.len() > PART_NUMBERS {
        sorted.copy_from_slice(numbers);
        sort_large(sorted);
    } else {
        let mut start = 0;
        for end in put_into_buckets(numbers, sorted, bits, numbers.len().ilog2() + 1) {
            sort_large(&mut sorted[start..end as usize]);
            start = end as usize;
        }
    }
    insert_in_order(sorted);
    drop_repeats(sorted)
}

/// Sorts a bucket that is not small.
fn sort_large(bucket: &mut [u64]) {
    if bucket.len() > PART_NUMBERS {
        bucket.par_sort_unstable();
    } else if bucket.len() > SMALL_BUCKET {
        bucket.sort_unstable();
    }
}

/// Sorts by insertion: in linear time where numbers are not more than a few places from where they belong.
fn insert_in_order(numbers: &mut [u64]) {
    for index in 1..numbers.len() {
        let number = numbers[index];
        let mut place = index;
        while place > 0 && numbers[place - 1] > number {
            numbers[place] = numbers[place - 1];
            place -= 1;
        }
        numbers[place] = number;
    }
}

/// Drops numbers that are equal to the one before, and gives how many are left.
fn drop_repeats(numbers: &mut [u64]) -> usize {
    let Some(&first) = numbers.first() else { return 0 };
    let (mut kept, mut last) = (1, first);
    // Without branches, which data would make unpredictable.
    for index in 1..numbers.len() {
        let number = numbers[index];
        numbers[kept] = number;
        kept += usize::from(number != last);
        last = number;
    }
    kept
}

/// Writes the numbers to `buckets` by the upper `bucket_bits` of their lower `bits`, and gives the end of each bucket.
fn put_into_buckets(numbers: &[u64], buckets: &mut [u64], bits: u32, bucket_bits: u32) -> Vec<u32> {
    let mask = (1 << bucket_bits) - 1;
    #[expect(clippy::cast_possible_truncation, reason = "the lower bits are what is asked for")]
    let bucket_of = |number: u64| (number >> (bits - bucket_bits)) as usize & mask;
    let mut places = vec![0; mask + 1];
    for &number in numbers {
        places[bucket_of(number)] += 1;
    }
    let mut start = 0;
    for place in &mut places {
        let count = *place;
        *place = start;
        start += count;
    }
    for &number in numbers {
        let place = &mut places[bucket_of(number)];
        buckets[*place as usize] = number;
        *place += 1;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    const BITS: u32 = 61;

    /// Numbers without a pattern.
    fn noise(count: usize) -> Vec<u64> {
        let mut bytes = vec![0; 8 * count];
        blake3::Hasher::new_derive_key("zkdv test noise")
            .finalize_xof()
            .fill(&mut bytes);
        let numbers = bytes.as_chunks().0.iter();
        numbers.map(|bytes| (u64::from_le_bytes(*bytes) >> 3).max(1)).collect()
    }

    fn check(what: &str, inside: &[u64]) {
        let numbers = [&[0], inside, &[u64::MAX]].concat();
        let mut expected = numbers.clone();
        expected.sort_unstable();
        expected.dedup();
        let mut sorted = numbers;
        sort_between(&mut sorted, &mut vec![9; 40], BITS);
        assert!(sorted == expected, "{} numbers, {what}", inside.len());
    }

    #[test]
    fn numbers_of_every_kind_are_sorted_and_distinct() {
        let counts = [0, 1, 2, 3, SMALL_BUCKET - 1, SMALL_BUCKET, SMALL_BUCKET + 1, 1000];
        let large = [PART_NUMBERS - 1, PART_NUMBERS, PART_NUMBERS + 1, 3 * PART_NUMBERS + 5];
        for count in counts.into_iter().chain(large) {
            let noise = noise(count);
            let ordinal = || 0..count as u64;
            let highest = (1u64 << BITS) - 1;
            check("noise", &noise);
            check("all equal", &vec![noise.first().copied().unwrap_or(1); count]);
            check("all lowest", &vec![1; count]);
            check("all highest", &vec![highest; count]);
            check(
                "two values",
                &ordinal()
                    .map(|index| if index % 2 == 0 { highest } else { 1 })
                    .collect::<Vec<_>>(),
            );
            check(
                "two neighbours",
                &ordinal().map(|index| 7 + index % 2).collect::<Vec<_>>(),
            );
            check(
                "ascending in one bucket",
                &ordinal().map(|index| index + 1).collect::<Vec<_>>(),
            );
            check(
                "descending in one bucket",
                &ordinal().map(|index| highest - index).collect::<Vec<_>>(),
            );
            check(
                "noise in one bucket",
                &noise.iter().map(|number| (number >> 45) + 1).collect::<Vec<_>>(),
            );
            check(
                "noise in ten values",
                &noise.iter().map(|number| number % 10 + 1).collect::<Vec<_>>(),
            );
            check("noise twice", &[noise.as_slice(), &noise].concat());
            let mut sorted = noise.clone();
            sorted.sort_unstable();
            check("ascending", &sorted);
            sorted.reverse();
            check("descending", &sorted);
            let half = noise.iter().enumerate();
            let half = half.map(|(index, number)| if index % 2 == 0 { *number } else { 1 });
            check("every other one the same", &half.collect::<Vec<_>>());
            let parts = noise.iter().enumerate();
            let parts = parts.map(|(index, number)| number >> (index % 61));
            check("of all sizes", &parts.map(|number| number.max(1)).collect::<Vec<_>>());
        }
    }
}
