-- Replace what Redis knows of a run by what the store holds, in one step, while workers may be at work on it.
-- KEYS state done pushed counts reasons flags series open parked lease, then the other keys that live as long as the run
-- ARGV done bitmap, bitmap of batches that are not in the store for certain, plan (JSON), prefix of the checkpoint keys,
--   bitmap of the batches that wait in the queue
-- Returns {1, batch…} and changes nothing if Redis has batches done that neither bitmap knows: committed since the listing.
-- Else {0, status before, status, completed, failed, prompt_tokens, completion_tokens, open batches}.
local state, done, pushed, counts, reasons, flags, series, open, parked, lease = unpack(KEYS)
local plan = cjson.decode(ARGV[3])

local function bit_of(map, number)
  local byte = string.byte(map, math.floor(number / 8) + 1) or 0
  return bit.band(byte, bit.rshift(128, number % 8)) ~= 0
end

local present = redis.call('GET', done) or ''
local unknown = {1}
for from = 1, math.min(#present, #ARGV[1]), 1024 do
  if string.sub(present, from, from + 1023) ~= string.sub(ARGV[1], from, from + 1023) then
    for place = from, math.min(from + 1023, #present, #ARGV[1]) do
      local known = bit.bor(string.byte(ARGV[1], place), string.byte(ARGV[2], place))
      local left = bit.band(string.byte(present, place), bit.bnot(known))
      for number = 0, 7 do
        if bit.band(left, bit.rshift(128, number)) ~= 0 then unknown[#unknown + 1] = (place - 1) * 8 + number end
      end
    end
  end
  if #unknown > 5000 then return unknown end
end
if #unknown > 1 then return unknown end

local totals = {[counts] = plan.counts, [reasons] = plan.reasons, [flags] = plan.flags}
local kinds = {c = counts, r = reasons, f = flags}
for _, batch in ipairs(redis.call('SMEMBERS', open)) do
  local key = ARGV[4] .. batch
  if bit_of(ARGV[1], tonumber(string.sub(batch, -8)) or -1) then redis.call('DEL', key) end
  local fields = redis.call('HKEYS', key)
  if #fields == 0 then redis.call('SREM', open, batch) end
  for _, field in ipairs(fields) do
    local target = string.sub(field, 2, 2) == ':' and kinds[string.sub(field, 1, 1)]
    if target then
      local name = string.sub(field, 3)
      totals[target][name] = (totals[target][name] or 0) + tonumber(redis.call('HGET', key, field))
    end
  end
end

local before = redis.call('HMGET', counts, 'completed', 'failed', 'sampled_at')
local same = tonumber(before[1] or 0) == totals[counts].completed and tonumber(before[2] or 0) == totals[counts].failed
if not same then redis.call('DEL', series) end  -- a jump of the totals is no rate
for key, fields in pairs(totals) do
  redis.call('DEL', key)
  for name, amount in pairs(fields) do redis.call('HSET', key, name, string.format('%.0f', amount)) end
end
if same and before[3] then redis.call('HSET', counts, 'sampled_at', before[3]) end

redis.call('SET', done, ARGV[1])
redis.call('SET', pushed, ARGV[5])
redis.call('BITOP', 'OR', pushed, pushed, done)  -- the sweep counts: pushed - done - leased
for _, batch in ipairs(redis.call('ZRANGE', lease, 0, -1)) do
  redis.call('SETBIT', pushed, tonumber(string.sub(batch, -8)) or 0, 1)
end
if plan.lift then redis.call('DEL', parked) end
for batch, cause in pairs(plan.parked) do redis.call('HSET', parked, batch, cause) end
for _, batch in ipairs(redis.call('HKEYS', parked)) do
  local number = tonumber(string.sub(batch, -8)) or 0
  if bit_of(ARGV[1], number) then redis.call('HDEL', parked, batch) else redis.call('SETBIT', pushed, number, 0) end
end

local was = redis.call('HGET', state, 'status') or ''
local status = 'running'
if plan.complete then
  status = 'complete'
elseif not plan.lift and (was == 'paused' or was == 'cancelled') then
  status = was
end
for name, value in pairs(plan.state) do redis.call('HSET', state, name, value) end
redis.call('HSET', state, 'status', status)
if plan.lift then redis.call('HDEL', state, 'served') end  -- the next claim decides anew which model it is
if status ~= 'complete' then redis.call('HDEL', state, 'finished_at') end
for _, key in ipairs(KEYS) do
  if status == 'complete' then redis.call('EXPIRE', key, plan.finished_ttl_s) else redis.call('PERSIST', key) end
end
local now = totals[counts]
return {0, was, status, now.completed, now.failed, now.prompt_tokens, now.completion_tokens, redis.call('SCARD', open)}
