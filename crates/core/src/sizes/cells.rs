//! Apportions cells to shares.

/// Apportions `cells` whole cells in proportion to `weights`. Every share gets the integer part of its quota,
/// and the remaining cells go to the largest remainders (Hamilton's method; ties to the first). No other
/// apportionment has a smaller maximum error. The thesis gives f = rho * p (4.10) without rounding;
/// truncation would lose up to one cell of each entry.
///
/// `weights` need not sum to 1; if their sum is 0, no share gets a cell.
pub(super) fn apportion(cells: u32, weights: &[f64]) -> Vec<u32> {
    let sum: f64 = weights.iter().sum();
    if sum <= 0.0 {
        return vec![0; weights.len()];
    }
    let exact: Vec<f64> = weights
        .iter()
        .map(|weight| weight / sum * f64::from(cells))
        .collect();
    // Rounding of the sum must not give more than `cells` cells.
    let mut left = cells;
    let mut apportioned: Vec<u32> = exact
        .iter()
        .map(|share| {
            let whole = (share.floor() as u32).min(left);
            left -= whole;
            whole
        })
        .collect();
    let mut order: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 0.0).collect();
    order.sort_by(|&a, &b| {
        let remainder = |index: usize| exact[index] - f64::from(apportioned[index]);
        remainder(b).total_cmp(&remainder(a)).then(a.cmp(&b))
    });
    for index in order.into_iter().cycle().take(left as usize) {
        apportioned[index] += 1;
    }
    apportioned
}
