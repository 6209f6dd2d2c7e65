-- Keep one prompt's outcome and count it, once, whoever brings it and however often.
-- KEYS done checkpoints open counts reasons flags workers series
-- ARGV batch bit index payload worker completed|failed prompt_tokens completion_tokens reason step_s length flag…
-- Returns {1} kept now, {0, payload} another outcome was kept before, {2} the batch is done.
if redis.call('GETBIT', KEYS[1], ARGV[2]) == 1 then return {2} end
local before = redis.call('HGET', KEYS[2], ARGV[3])
if before then return {0, before} end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
local function add(hash, field, prefix, amount)
  redis.call('HINCRBY', hash, field, amount)
  redis.call('HINCRBY', KEYS[2], prefix .. field, amount)
end
add(KEYS[4], ARGV[6], 'c:', 1)
add(KEYS[4], 'prompt_tokens', 'c:', ARGV[7])
add(KEYS[4], 'completion_tokens', 'c:', ARGV[8])
if ARGV[9] ~= '' then add(KEYS[5], ARGV[9], 'r:', 1) end
for i = 12, #ARGV do add(KEYS[6], ARGV[i], 'f:', 1) end
redis.call('HINCRBY', KEYS[7], ARGV[5] .. ':' .. ARGV[6], 1)
redis.call('SADD', KEYS[3], ARGV[1])
local now = tonumber(redis.call('TIME')[1])
local sampled = tonumber(redis.call('HGET', KEYS[4], 'sampled_at') or '0')
if now - sampled >= tonumber(ARGV[10]) then
  redis.call('HSET', KEYS[4], 'sampled_at', now)
  local c = redis.call('HMGET', KEYS[4], 'completed', 'failed', 'prompt_tokens', 'completion_tokens')
  redis.call('LPUSH', KEYS[8], string.format('[%d,%s,%s,%s,%s]', now, c[1] or 0, c[2] or 0, c[3] or 0, c[4] or 0))
  redis.call('LTRIM', KEYS[8], 0, ARGV[11] - 1)
end
return {1}
